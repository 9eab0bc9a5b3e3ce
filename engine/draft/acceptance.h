// Acceptance: how likely a sequence's next drafts are right. Plain data of the engine thread, one
// per sequence.
//
// The drafter gives a logit c of its own confidence in each draft; how far to trust it differs
// between models and texts. So the chance of the draft at place i, given that those before it are
// right, is sigmoid(bias + place[i] + slope * c), and all three are learned as outcomes come, by
// steps along the gradient of the log-likelihood (logistic regression, one observation at a time):
// the bias for each sequence, places and slope, which are the drafter's own ways, for all together.
// Learning given c is not misled by which drafts were chosen, as a plain average would be.
//
// Outcomes are also known for one draft more than was verified when all of those were right: the
// next sampled token says whether the next draft would have been. So a sequence whose drafts are
// not verified at all still learns about its first.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "engine/draft/draft_constants.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

// What all sequences together have taught since the start. Owned by the depth policy.
struct DraftExperience {
  explicit DraftExperience(const DraftConstants& constants = kDraftConstants)
      : slope(constants.slope), place(constants.place), gain(constants.gain_start) {}
  double slope;
  std::array<double, kDraftRowsMax> place;
  double gain;  // running mean of DepthPolicy::gain
};

class Acceptance {
 public:
  explicit Acceptance(const DraftConstants& constants = kDraftConstants)
      : constants_(constants), bias_(constants.bias) {
    rate_.fill(kRateStart);
  }

  // Of a step's drafts `known` have an outcome: the first `right` were right, and when known is
  // right + 1 the next one was wrong. `confidence`: of each draft; empty or short: 0.
  void learn(std::span<const float> confidence, int32_t known, int32_t right,
             DraftExperience& experience);
  // Counts for statistics: `verified` drafts were checked, `accepted` of them were right.
  void count(int32_t verified, int32_t accepted);
  // As good as a new sequence at least, and the next outcomes weigh as much as its first: what was
  // learned would choose no drafts, and so never see that they are right again.
  void open_mind() {
    learned_ = 0;
    bias_ = std::max(bias_, constants_.bias);
  }

  double chance(int32_t place, float confidence, const DraftExperience& experience) const;
  // Running share of right drafts at a place, among those with an outcome.
  double rate(int32_t place) const { return rate_[static_cast<size_t>(place)]; }
  int64_t drafted() const { return drafted_; }
  int64_t accepted() const { return accepted_; }

 private:
  static constexpr double kRateStart = 0.5;
  DraftConstants constants_;
  double bias_;
  std::array<double, kDraftRowsMax> rate_ = {};
  int64_t learned_ = 0;
  int64_t drafted_ = 0;
  int64_t accepted_ = 0;
};

}  // namespace tensorfold
