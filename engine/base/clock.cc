#include "engine/base/clock.h"

#include <chrono>

namespace tensorfold {
namespace {

class SystemClock final : public Clock {
 public:
  int64_t monotonic_us() const override {
    return to_us(std::chrono::steady_clock::now().time_since_epoch());
  }
  int64_t unix_us() const override {
    return to_us(std::chrono::system_clock::now().time_since_epoch());
  }

 private:
  template <typename D>
  static int64_t to_us(D d) {
    return std::chrono::duration_cast<std::chrono::microseconds>(d).count();
  }
};

}  // namespace

const Clock& system_clock() {
  static const SystemClock clock;
  return clock;
}

}  // namespace tensorfold
