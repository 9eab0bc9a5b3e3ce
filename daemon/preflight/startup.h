// The checks that a start makes: those that read a few files, run no program and ask nobody. Only
// where a large model is to run on a GPU. A start is refused only on what would surely end it
// later, when minutes were spent and, on a machine with one memory for all, harm was done.
#pragma once

#include <string>
#include <vector>

#include "daemon/preflight/check.h"

namespace tensorfold::preflight {

struct StartupFindings {
  std::vector<std::string> warnings;  // "preflight NAME: what was read. What to do"
  // kInvalidArgument: the same would happen again; kUnavailable: it may pass.
  Status refusal;
};

// The names of the checks that a start makes.
std::vector<std::string_view> startup_checks();
StartupFindings check_startup(const Machine& machine, const Settings& settings);

}  // namespace tensorfold::preflight
