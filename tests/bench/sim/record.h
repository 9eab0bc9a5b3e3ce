// Records traces of a real model: its replies to a few questions of each kind, with the drafter run
// at every position and nothing verified.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "tests/bench/sim/traces.h"

namespace tensorfold::sim {

struct RecordPart {
  // 0: everything. Else so many of the first replies of each fitting trace that is greedy.
  size_t greedy_replies = 0;
  // What is recorded instead of the model itself.
  std::function<Model&(Model&)> view = {};
};

Result<std::vector<Trace>> record_traces(const std::string& model_path,
                                         const RecordPart& what = {});

}  // namespace tensorfold::sim
