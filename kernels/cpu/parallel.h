// CpuStream: a bounded pool of threads that share one operation at a time.
//
// Owner: whoever made it; parallel_for is called by one thread at a time. Which lane runs which
// task varies from call to call, so tasks write disjoint results and never reduce across tasks:
// results don't depend on the number of lanes. Idle lanes spin for kSpinRounds, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "engine/base/status.h"
#include "kernels/op.h"

namespace tensorfold {

inline constexpr int kCpuLanesMax = 64;  // threads of one CPU stream
// Below this much work (multiplies and adds) an operation runs on the calling thread alone.
inline constexpr int64_t kParallelOperationsMin = 40'000;

class CpuStream final : public Stream {
 public:
  // threads 0: one per core. kUnavailable when the system refuses threads.
  static Result<std::unique_ptr<CpuStream>> create(int threads);
  ~CpuStream() override;
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  int lanes() const override { return lanes_; }

  // f(task, lane) for task in [0, tasks), lane in [0, lanes()); returns when all are done.
  // `operations` is the work of all tasks together.
  template <typename F>
  void parallel_for(int64_t tasks, int64_t operations, F&& f) {
    if (lanes_ == 1 || tasks <= 1 || operations < kParallelOperationsMin) {
      for (int64_t i = 0; i < tasks; ++i) f(i, 0);
      return;
    }
    using Fn = std::remove_reference_t<F>;
    run(
        tasks, [](void* ctx, int64_t task, int lane) { (*static_cast<Fn*>(ctx))(task, lane); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Task = void (*)(void* ctx, int64_t task, int lane);
  explicit CpuStream(int lanes) : lanes_(lanes) {}
  void run(int64_t tasks, Task fn, void* ctx);
  void work(int lane);
  void worker_loop(int lane);

  int lanes_;
  std::vector<std::thread> workers_;
  // The job: written by run() before epoch_ is released, read by lanes after they acquire it.
  Task fn_ = nullptr;
  void* ctx_ = nullptr;
  int64_t tasks_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<uint32_t> epoch_{0};
  std::atomic<int32_t> busy_{0};  // workers that have not finished the job
  std::atomic<bool> stop_{false};
};

inline CpuStream& cpu_stream(Stream& stream) { return static_cast<CpuStream&>(stream); }

}  // namespace tensorfold
