// SpillHealth: whether the tier writes. Off after a fault, with one warning line; tried again after
// a wait that doubles up to kSpillRetryMostUs; on again with one line after the first success.
// Owned by the engine thread.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/log_sink.h"
#include "engine/base/status.h"

namespace tensorfold {

inline constexpr int64_t kSpillRetryFirstUs = 30'000'000;
inline constexpr int64_t kSpillRetryMostUs = 900'000'000;

class SpillHealth {
 public:
  explicit SpillHealth(LogSink& log) : log_(log) {}

  bool on() const { return on_; }
  bool trying() const { return on_ && !reason_.empty(); }  // on again, but nothing succeeded yet
  const std::string& reason() const { return reason_; }    // empty: well
  int64_t times_off() const { return times_off_; }
  bool due(int64_t now_us) const { return !on_ && !for_good_ && now_us >= retry_us_; }

  // A line only when it was well before.
  void turn_off(const std::string& reason, int64_t now_us);
  void turn_off_for_good(const std::string& reason);  // until turn_on_again()
  void turn_on_again();                               // what kept it off is gone: with a line
  void try_again() { on_ = true; }
  void succeeded();

 private:
  LogSink& log_;
  bool on_ = true;
  bool for_good_ = false;
  std::string reason_;
  int64_t wait_us_ = 0;
  int64_t retry_us_ = 0;
  int64_t times_off_ = 0;
};

}  // namespace tensorfold
