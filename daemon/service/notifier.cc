#include "daemon/service/notifier.h"

#include <systemd/sd-daemon.h>

namespace tensorfold::service {

Notifier::Notifier(const Clock& clock) : clock_(clock) {
  uint64_t interval_us = 0;
  if (sd_watchdog_enabled(0, &interval_us) > 0) watchdog_us_ = static_cast<int64_t>(interval_us);
}

void Notifier::status(const std::string& text) {
  const int64_t now_us = clock_.monotonic_us();
  if (text == last_status_) return;
  if (last_status_us_ != 0 && now_us - last_status_us_ < kStatusGapMs * 1000) return;
  last_status_ = text;
  last_status_us_ = now_us;
  sd_notify(0, ("STATUS=" + text).c_str());
}

void Notifier::ready(const std::string& text) {
  last_status_ = text;
  sd_notify(0, ("READY=1\nSTATUS=" + text).c_str());
}

// systemd 253 and later want the time as well, in the same message; older ones ignore it.
void Notifier::reloading() {
  sd_notify(0, ("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(clock_.monotonic_us())).c_str());
}

void Notifier::stopping(const std::string& text) {
  last_status_ = text;
  last_extend_us_ = 0;  // what was asked for a load does not count for the stop
  sd_notify(0, ("STOPPING=1\nSTATUS=" + text).c_str());
}

void Notifier::extend_timeout() {
  const int64_t now_us = clock_.monotonic_us();
  if (last_extend_us_ != 0 && now_us - last_extend_us_ < kExtendAgainMs * 1000) return;
  last_extend_us_ = now_us;
  sd_notify(0, ("EXTEND_TIMEOUT_USEC=" + std::to_string(kExtendTimeoutMs * 1000)).c_str());
}

void Notifier::watchdog(bool alive) {
  if (watchdog_us_ == 0 || !alive) return;
  const int64_t now_us = clock_.monotonic_us();
  if (now_us - last_ping_us_ < watchdog_us_ / 3) return;
  last_ping_us_ = now_us;
  sd_notify(0, "WATCHDOG=1");
}

}  // namespace tensorfold::service
