// The io threads of the spill tier: one writes, a few read. Two queues under one mutex; jobs are
// taken in order of arrival. The mutex is held for moves of a pointer only, never during a file
// operation, so the engine thread does not wait for the disk here.
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/cache/spill/spill_io.h"

namespace tensorfold {
namespace {

class SpillThreads final : public SpillIo {
 public:
  SpillThreads(FileSystem& files, SpillPlace place, const Clock& clock)
      : files_(files), place_(std::move(place)), clock_(clock) {
    threads_.emplace_back([this] { run(writes_); });
    for (int i = 0; i < kSpillReadersMax; ++i) threads_.emplace_back([this] { run(reads_); });
  }

  ~SpillThreads() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    ready_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  void submit(SpillJob job) override {
    const bool reads =
        std::holds_alternative<ReadJob>(job.work) || std::holds_alternative<HeadersJob>(job.work);
    {
      std::lock_guard lock(mutex_);
      (reads ? reads_ : writes_).push_back(std::move(job));
      ++waiting_;
    }
    ready_.notify_all();
  }

  std::vector<SpillDone> take_done() override {
    if (!any_done_.load(std::memory_order_acquire)) return {};
    std::lock_guard lock(mutex_);
    any_done_.store(false, std::memory_order_relaxed);
    return std::exchange(done_, {});
  }

  void drop_writes() override {
    std::lock_guard lock(mutex_);
    for (auto it = writes_.begin(); it != writes_.end();) {
      if (!std::holds_alternative<WriteJob>(it->work)) {
        ++it;
        continue;
      }
      SpillDone done;
      done.id = it->id;
      done.work = std::move(it->work);
      done.status = Status(StatusCode::kCancelled, "dropped");
      done_.push_back(std::move(done));
      it = writes_.erase(it);
      --waiting_;
      any_done_.store(true, std::memory_order_release);
    }
  }

  int64_t waiting() const override {
    std::lock_guard lock(mutex_);
    return waiting_;
  }

 private:
  void run(std::deque<SpillJob>& queue) {
    std::unique_lock lock(mutex_);
    while (true) {
      ready_.wait(lock, [&] { return stop_ || !queue.empty(); });
      if (stop_) return;
      SpillJob job = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      SpillDone done = run_spill_job(files_, place_, clock_, std::move(job));
      lock.lock();
      done_.push_back(std::move(done));
      --waiting_;
      any_done_.store(true, std::memory_order_release);
    }
  }

  FileSystem& files_;
  const SpillPlace place_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<SpillJob> writes_, reads_;
  std::vector<SpillDone> done_;
  int64_t waiting_ = 0;
  bool stop_ = false;
  std::atomic<bool> any_done_{false};
  std::vector<std::thread> threads_;  // last: everything above is there when they start
};

}  // namespace

std::unique_ptr<SpillIo> make_spill_threads(FileSystem& files, SpillPlace place,
                                            const Clock& clock) {
  return std::make_unique<SpillThreads>(files, std::move(place), clock);
}

}  // namespace tensorfold
