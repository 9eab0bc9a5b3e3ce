// Row costs of a model on this machine: one thread's processor time, the least disturbed of several
// measurements.
#pragma once

#include <string>

#include "engine/base/status.h"

namespace tensorfold::sim {

// The stored form of engine/draft/cost_table.h.
Result<std::string> measure_table(const std::string& model_path);

}  // namespace tensorfold::sim
