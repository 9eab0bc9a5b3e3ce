#include "ctl/control_wait.h"

#include <chrono>
#include <cstdlib>
#include <ostream>
#include <thread>

#include "ctl/control_client.h"

namespace tensorfold::ctl {

bool wait_seconds(const Invocation& call, double& seconds) {
  seconds = 0;
  if (!call.has("--wait")) return true;
  const std::string text = call.get("--wait");
  char* end = nullptr;
  seconds = std::strtod(text.c_str(), &end);
  if (end != text.c_str() && *end == '\0' && seconds >= 0 && seconds <= kWaitSecondsMax)
    return true;
  *call.err << "tfctl: --wait needs seconds in 0..86400, not '" << text << "'\n";
  return false;
}

bool look_until(const Invocation& call, std::string_view path, double seconds,
                const std::function<bool(const Result<Json>& document)>& over) {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::milliseconds(static_cast<long long>(seconds * 1000));
  while (!over(control_get(call, path))) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(kLookGapMs));
  }
  return true;
}

}  // namespace tensorfold::ctl
