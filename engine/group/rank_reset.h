// What a rank does by itself to its sequences when its group has ended: carry out the commands of a
// plan without its rows, or forget everything. Owner: the thread that drives the rank's model.
#pragma once

#include <cstdint>

#include "engine/step_executor.h"

namespace tensorfold {

struct RankShape {
  int slots = 0;
  int64_t snapshots = 0;  // numbers 0..snapshots-1
};

// The plan's commands without its rows.
StepPlan commands_of(const StepPlan& plan);

// Closes every slot and drops every snapshot, whatever state they are in: a plan that was carried
// out by half leaves executor and model with different ideas of what is open.
void reset_rank(StepRunner& local, const RankShape& shape);

// What must be done whatever else is given up: records that must not serve again.
void keep_forgets(StepRunner& local, const StepPlan& plan);

}  // namespace tensorfold
