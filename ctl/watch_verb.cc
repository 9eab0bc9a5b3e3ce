// tfctl watch: the status again and again, in place on a terminal, a line each time elsewhere.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <ostream>
#include <thread>

#include "ctl/control_client.h"
#include "ctl/status_text.h"
#include "ctl/verbs.h"
#include "daemon/control/protocol.h"

namespace tensorfold::ctl {
namespace {

constexpr double kIntervalSecondsMin = 0.1, kIntervalSecondsMax = 3600;
constexpr long kCountMax = 1'000'000'000;

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[16];
  return std::strftime(text, sizeof text, "%H:%M:%S", &local) > 0 ? text : "";
}

// Home, every line cleared to its end, and what is below cleared.
void draw(std::ostream& out, const std::string& title, const StatusLines& lines) {
  out << "\x1b[H" << title << "\x1b[K\n\x1b[K\n";
  for (const auto& [name, value] : lines) out << status_line(name, value) << "\x1b[K\n";
  out << "\x1b[J" << std::flush;
}

}  // namespace

int run_watch(const Invocation& call) {
  char* end = nullptr;
  const std::string interval = call.get("--interval", "1"), times = call.get("--count", "0");
  const double seconds = std::strtod(interval.c_str(), &end);
  if (*end != '\0' || interval.empty() ||
      !(seconds >= kIntervalSecondsMin && seconds <= kIntervalSecondsMax)) {
    *call.err << "tfctl: --interval needs seconds in 0.1..3600, not '" << interval << "'\n";
    return kExitUsage;
  }
  const long count = std::strtol(times.c_str(), &end, 10);
  if (*end != '\0' || times.empty() || count < 0 || count > kCountMax) {
    *call.err << "tfctl: --count needs a number, 0 for no end, not '" << times << "'\n";
    return kExitUsage;
  }
  const bool terminal = isatty(STDOUT_FILENO) == 1 && !call.json;
  if (terminal) *call.out << "\x1b[2J";
  int code = kExitOk;
  for (long shown = 0; count == 0 || shown < count; ++shown) {
    if (shown > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    std::string text;
    const auto document = control_get(call, control::kStatusPath, &text);
    if (!document.ok() && !terminal) return control_failure(call, document.status());
    code = document.ok() ? kExitOk : kExitNotRunning;
    if (call.json) {
      *call.out << text << "\n" << std::flush;
    } else if (terminal) {
      const StatusLines lines =
          document.ok() ? status_lines(*document)
                        : StatusLines{{"state", std::string(document.status().message())}};
      draw(*call.out, "tensorfoldd  " + time_of_day(), lines);
    } else {
      *call.out << time_of_day() << " " << status_summary(*document) << "\n" << std::flush;
    }
  }
  return code;
}

}  // namespace tensorfold::ctl
