// Acceptance: how often a sequence's drafts have been right, by place in the draft. Plain data of
// the engine thread, one per sequence.
#pragma once

#include <array>
#include <cstdint>

#include "engine/sched/step_plan.h"

namespace tensorfold {

class Acceptance {
 public:
  // `verified` drafts were checked and the first `accepted` of them were right.
  void record(int32_t verified, int32_t accepted);
  // Chance that draft `place` is right when those before it were: a running average.
  double rate(int32_t place) const { return rate_[static_cast<size_t>(place)]; }
  int64_t drafted() const { return drafted_; }
  int64_t accepted() const { return accepted_; }

 private:
  static constexpr double kMemory = 1.0 / 16;  // weight of the newest observation
  // Before anything is known: between the field's figures for prose and for code.
  std::array<double, kDraftRowsMax> rate_ = {0.75, 0.7, 0.65, 0.6, 0.55};
  int64_t drafted_ = 0;
  int64_t accepted_ = 0;
};

}  // namespace tensorfold
