// See the header.
#include "engine/group/rank_reset.h"

#include <vector>

namespace tensorfold {
namespace {

using Kind = CacheCommand::Kind;

// Refusals are expected: most of it is closed or gone.
void attempt(StepRunner& local, const CacheCommand& command, const CacheNote* note = nullptr) {
  StepPlan plan;
  plan.commands.push_back(command);
  if (note != nullptr) plan.notes.push_back(*note);
  std::vector<SampledTokens> results;
  (void)local.run(plan, results);
}

}  // namespace

StepPlan commands_of(const StepPlan& plan) {
  StepPlan out;
  out.step = plan.step;
  out.commands = plan.commands;
  out.notes = plan.notes;
  return out;
}

void reset_rank(StepRunner& local, const RankShape& shape) {
  for (SlotId slot = 0; slot < shape.slots; ++slot) {
    // Open in the middle: a slot that only the executor thinks closed is open to both after it.
    for (const Kind kind : {Kind::kCloseSlot, Kind::kOpenSlot, Kind::kCloseSlot})
      attempt(local, {kind, slot, 0, 0});
  }
  for (int64_t number = 0; number < shape.snapshots; ++number)
    attempt(local, {Kind::kDropSnapshot, 0, 0, number});
}

void keep_forgets(StepRunner& local, const StepPlan& plan) {
  for (const CacheCommand& c : plan.commands) {
    if (c.kind != Kind::kForget) continue;
    if (c.value < 0 || static_cast<size_t>(c.value) >= plan.notes.size()) continue;
    attempt(local, {Kind::kForget, 0, 0, 0}, &plan.notes[static_cast<size_t>(c.value)]);
  }
}

}  // namespace tensorfold
