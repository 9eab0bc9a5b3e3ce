// Records traces of a real model: its replies to a few questions of each kind, with the drafter run
// at every position and nothing verified.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/sim/traces.h"

namespace tensorfold::sim {

Result<std::vector<Trace>> record_traces(const std::string& model_path);

}  // namespace tensorfold::sim
