// The service manager: readiness, one status line, watchdog, longer timeouts. Every call is a no-op
// where there is no service manager.
//
// Owner: the loop thread.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/clock.h"

namespace tensorfold::service {

inline constexpr int64_t kStatusGapMs = 1'000;  // at most one STATUS line in that time
inline constexpr int64_t kExtendAgainMs = 20'000;
// Asked for while a load moves on: a stand of 60 s is borne also right after a step that was too
// soon to ask again.
inline constexpr int64_t kExtendTimeoutMs = 80'000;

class Notifier {
 public:
  explicit Notifier(const Clock& clock);

  void status(const std::string& text);  // sent on change, at most once per kStatusGapMs
  void ready(const std::string& text);
  void reloading();  // ready() ends it
  void stopping(const std::string& text);
  // While loading or draining goes on: asks for more time, now and then.
  void extend_timeout();
  // `alive`: the engine moved, or has nothing to do. Pings at a third of the watchdog's interval.
  void watchdog(bool alive);
  int64_t watchdog_us() const { return watchdog_us_; }  // 0: none

 private:
  const Clock& clock_;
  int64_t watchdog_us_ = 0;
  int64_t last_ping_us_ = 0;
  int64_t last_status_us_ = 0;
  int64_t last_extend_us_ = 0;
  std::string last_status_;
};

}  // namespace tensorfold::service
