// What a start with given options would take of memory, for those who only want to know: from
// config.json and the headers of the weights, by the same sums as a start's own check
// (engine/memory_plan.h). Opens no device, reads no weights. Keeps nothing.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"

namespace tensorfold {

struct PlannedMemory {
  std::vector<std::string> lines;  // one for each rank of the model
  Status fits;                     // this rank's, as check_plan() has it
};

// `shared`: the model's memory is this machine's. Otherwise the device itself says what does not
// fit, and `fits` is ok. Errors: as of a load, up to the point where weights are read.
Result<PlannedMemory> planned_memory(const EngineOptions& options, bool shared);

}  // namespace tensorfold
