// The checks that a start makes: those that read a few files, run no program and ask nobody. Only
// where a large model is to run on a GPU. A start is refused only on what would surely end it
// later, when minutes were spent and, on a machine with one memory for all, harm was done.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/preflight/check.h"

namespace tensorfold::preflight {

struct StartupFindings {
  std::vector<std::string> warnings;  // "preflight NAME: what was read. What to do"
  // kInvalidArgument: the same would happen again; kUnavailable: it may pass.
  Status refusal;
  // The refusal is of something that a boot may bring a moment later.
  bool may_appear = false;
};

// The names of the checks that a start makes.
std::vector<std::string_view> startup_checks();
StartupFindings check_startup(const Machine& machine, const Settings& settings);

inline constexpr int64_t kDeviceWaitMs = 120'000;  // for the GPU's driver and nodes after a boot
inline constexpr int64_t kDeviceLookMs = 1'000;

// The same, but what may appear is waited for up to kDeviceWaitMs. `pause` is told what is missing
// and lets kDeviceLookMs pass; false ends the wait.
StartupFindings await_startup(const Machine& machine, const Settings& settings,
                              const std::function<bool(const std::string&)>& pause);

}  // namespace tensorfold::preflight
