// ReadAhead: things that are read in a known order, by threads ahead of the one who asks for them.
//
// Owner: whoever loads; take() belongs to one thread. The threads hold what they have read until it
// is taken, kReadAheadBytesMax together (one that alone is more is read when nothing else is held).
// What is asked for before its turn, or twice, is left to who asks: nothing ever waits for room.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold {

inline constexpr int64_t kReadAheadBytesMax = int64_t{512} << 20;
inline constexpr int kReadAheadThreadsMax = 16;

template <typename Thing>
class ReadAhead {
 public:
  // Makes a thread's reader of things, by index.
  using Reader = std::function<Result<Thing>(size_t index)>;
  using MakeReader = std::function<Reader()>;

  ReadAhead(std::vector<int64_t> sizes, int threads, const MakeReader& make)
      : sizes_(std::move(sizes)), slots_(sizes_.size()) {
    for (int i = 0; i < threads; ++i)
      threads_.emplace_back([this, reader = make()] { run(reader); });
  }
  ~ReadAhead() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Nothing: read it yourself.
  std::optional<Result<Thing>> take(size_t index) {
    std::unique_lock lock(mutex_);
    Slot& slot = slots_[index];
    if (slot.state == State::kWaits || slot.state == State::kTaken) {
      slot.state = State::kTaken;
      return std::nullopt;
    }
    changed_.wait(lock, [&] { return slot.state == State::kRead; });
    slot.state = State::kTaken;
    std::optional<Result<Thing>> thing = std::move(slot.thing);
    slot.thing.reset();
    held_ -= sizes_[index];
    lock.unlock();
    changed_.notify_all();
    return thing;
  }

 private:
  enum class State : unsigned char { kWaits, kReading, kRead, kTaken };
  struct Slot {
    State state = State::kWaits;
    std::optional<Result<Thing>> thing;
  };

  void run(const Reader& reader) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ending_ || !find_next() || fits(); });
      if (ending_ || !find_next()) return;
      const size_t index = next_++;
      slots_[index].state = State::kReading;
      held_ += sizes_[index];
      lock.unlock();
      Result<Thing> thing = reader(index);
      lock.lock();
      slots_[index].thing.emplace(std::move(thing));
      slots_[index].state = State::kRead;
      changed_.notify_all();
    }
  }
  // Moves next_ to the next thing that nobody has taken; false: there is none.
  bool find_next() {
    while (next_ < slots_.size() && slots_[next_].state == State::kTaken) ++next_;
    return next_ < slots_.size();
  }
  bool fits() const { return held_ == 0 || held_ + sizes_[next_] <= kReadAheadBytesMax; }

  const std::vector<int64_t> sizes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
  int64_t held_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tensorfold
