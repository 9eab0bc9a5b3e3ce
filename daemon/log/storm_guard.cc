#include "daemon/log/storm_guard.h"

#include <algorithm>

namespace tensorfold::log {
namespace {

std::string kind_name(std::string_view event, std::string_view message) {
  if (!event.empty()) return std::string(event);
  std::string out;
  for (const char c : message.substr(0, kStormKindBytesMax)) {
    if (c < '0' || c > '9') out += c;
  }
  return out;
}

}  // namespace

StormGuard::Kind& StormGuard::kind_of(std::string_view event, std::string_view message,
                                      int64_t now_ms) {
  std::string name = kind_name(event, message);
  const auto same = std::find_if(kinds_.begin(), kinds_.end(),
                                 [&name](const Kind& kind) { return kind.name == name; });
  if (same != kinds_.end()) return *same;
  Kind& oldest = *std::min_element(kinds_.begin(), kinds_.end(), [](const Kind& a, const Kind& b) {
    return a.window_end_ms < b.window_end_ms;
  });
  oldest = Kind{};
  oldest.name = std::move(name);
  oldest.window_ms = kStormWindowMs;
  oldest.window_end_ms = now_ms + kStormWindowMs;
  return oldest;
}

StormGuard::Verdict StormGuard::admit(std::string_view event, std::string_view message) {
  const int64_t now_ms = clock_.monotonic_us() / 1000;
  const std::lock_guard hold(mutex_);
  Kind& kind = kind_of(event, message, now_ms);
  if (now_ms >= kind.window_end_ms) {
    // A window's length without a line ends the storm.
    const bool calm = now_ms >= kind.window_end_ms + kind.window_ms;
    kind.storm = !calm && kind.left_out > 0;
    kind.window_ms = kind.storm ? std::min(2 * kind.window_ms, kStormWindowMsMax) : kStormWindowMs;
    kind.window_end_ms = now_ms + kind.window_ms;
    kind.lines = 0;
  }
  if (++kind.lines > (kind.storm ? 1 : kStormLines)) {
    ++kind.left_out;
    return {false, 0};
  }
  const Verdict out{true, kind.left_out};
  kind.left_out = 0;
  return out;
}

}  // namespace tensorfold::log
