// Time as an injected dependency: nothing in engine/ or daemon/ reads a clock directly, so tests
// and the simulator decide what time it is.
#pragma once

#include <atomic>
#include <cstdint>

namespace tensorfold {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t monotonic_us() const = 0;  // microseconds since an arbitrary start
  virtual int64_t unix_us() const = 0;       // microseconds since 1970-01-01 UTC
};

const Clock& system_clock();

// A clock that moves only when told to. Safe to read from any thread.
class ManualClock final : public Clock {
 public:
  int64_t monotonic_us() const override { return now_us_.load(std::memory_order_acquire); }
  int64_t unix_us() const override { return now_us_.load(std::memory_order_acquire); }
  void advance_us(int64_t us) { now_us_.fetch_add(us, std::memory_order_acq_rel); }

 private:
  std::atomic<int64_t> now_us_{0};
};

}  // namespace tensorfold
