// Acceptance: how likely a sequence's next drafts are right. Plain data of the engine thread, one
// per sequence.
//
// The drafter gives a logit c of its own confidence in each draft; how far to trust it differs
// between texts. So the chance of the draft at place i, given that those before it are right, is
// sigmoid(bias + place[i] + slope * c), and bias, places and slope are learned as outcomes come, by
// steps along the gradient of the log-likelihood (logistic regression, one observation at a time).
// Learning given c is not misled by which drafts were chosen, as a plain average would be.
//
// Outcomes are also known for one draft more than was verified when all of those were right: the
// next sampled token says whether the next draft would have been. So a sequence whose drafts are
// not verified at all still learns about its first.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/draft/draft_constants.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

class Acceptance {
 public:
  explicit Acceptance(const DraftConstants& constants = kDraftConstants);

  // Of a step's drafts `known` have an outcome: the first `right` were right, and when known is
  // right + 1 the next one was wrong. `confidence`: of each draft; empty or short: 0.
  void learn(std::span<const float> confidence, int32_t known, int32_t right);
  // Counts for statistics: `verified` drafts were checked, `accepted` of them were right.
  void count(int32_t verified, int32_t accepted);
  // Back to what is assumed of a new sequence; the counts stay.
  void forget();

  double chance(int32_t place, float confidence) const;
  // Running share of right drafts at a place, among those with an outcome.
  double rate(int32_t place) const { return rate_[static_cast<size_t>(place)]; }
  int64_t drafted() const { return drafted_; }
  int64_t accepted() const { return accepted_; }

 private:
  DraftConstants constants_;
  double bias_ = 0;
  double slope_ = 0;
  std::array<double, kDraftRowsMax> place_ = {};
  std::array<double, kDraftRowsMax> rate_ = {};
  int64_t learned_ = 0;
  int64_t drafted_ = 0;
  int64_t accepted_ = 0;
};

}  // namespace tensorfold
