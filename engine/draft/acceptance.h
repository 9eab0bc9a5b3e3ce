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
  // Chance that draft `place` is right when those before it were: a running average. A place that
  // was never tried is as good as the one before it, so that deep drafts are tried at all.
  double rate(int32_t place) const;
  int64_t drafted() const { return drafted_; }
  int64_t accepted() const { return accepted_; }

 private:
  static constexpr double kMemory = 1.0 / 16;  // weight of the newest observation, in the long run
  static constexpr int kPriorWeight = 4;       // observations that the prior counts for
  // Before anything is known: between the field's figures for prose and for code.
  std::array<double, kDraftRowsMax> rate_ = {0.75, 0.7, 0.65, 0.6, 0.55};
  std::array<int64_t, kDraftRowsMax> tried_ = {};
  int64_t drafted_ = 0;
  int64_t accepted_ = 0;
};

}  // namespace tensorfold
