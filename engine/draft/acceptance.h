// Acceptance: how likely a sequence's next drafts are right. Plain data of the engine thread, one
// per sequence.
//
// The drafter gives a logit c of its own confidence in each draft; how far to trust it differs
// between models and texts. So the chance of the draft at place i, given that those before it are
// right, is sigmoid(bias + place[i] + slope * c): logistic regression, one outcome at a time. The
// bias is the sequence's own; places and slope are the drafter's ways, learned from all sequences
// together. All are kept as means with their (co)variances, so that what is not known yet is
// learned in a few rounds, what is known moves slowly, and a confidence that says nothing is soon
// left out. An outcome moves the mean to where its probability is highest, and the variances by the
// curvature there (assumed-density filtering: Opper, "A Bayesian approach to on-line learning",
// 1998). The variances grow a little every round, up to what they were at first: texts change.
//
// Learning given c is not misled by which drafts were chosen, as a plain average would be. Outcomes
// are also known for one draft more than was verified when all of those were right: the next
// sampled token says whether the next draft would have been. So a sequence whose drafts are not
// verified at all still learns about its first.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/draft/draft_constants.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

// What all sequences together have taught since the start. Owned by the depth policy.
struct DraftExperience {
  static constexpr size_t kSize = kDraftRowsMax + 1;  // the places, then the slope

  explicit DraftExperience(const DraftConstants& constants = kDraftConstants);
  double slope() const { return mean[kDraftRowsMax]; }

  std::array<double, kSize> mean = {};
  std::array<std::array<double, kSize>, kSize> covariance = {};
  double promise;      // running mean of DepthPolicy::promise
  double replies = 0;  // that began, and their rounds: sums that forget old replies
  double rounds = 0;
  int dry_rounds = 0;  // since drafts lay ready for any sequence
};

class Acceptance {
 public:
  explicit Acceptance(const DraftConstants& constants = kDraftConstants);

  // Of a step's drafts `known` have an outcome: the first `right` were right, and when known is
  // right + 1 the next one was wrong. `confidence`: of each draft; empty or short: 0.
  void learn(std::span<const float> confidence, int32_t known, int32_t right,
             DraftExperience& experience);
  // Counts for statistics: `verified` drafts were checked, `accepted` of them were right.
  void count(int32_t verified, int32_t accepted);
  // What was learned long ago may not hold: half of it goes, and as little is sure as at first.
  void forget();

  double chance(int32_t place, float confidence, const DraftExperience& experience) const;
  // Running share of right drafts at a place, among those with an outcome.
  double rate(int32_t place) const { return rate_[static_cast<size_t>(place)]; }
  int64_t drafted() const { return drafted_; }
  int64_t accepted() const { return accepted_; }

 private:
  static constexpr double kRateStart = 0.5;

  void learn_one(int32_t place, double confidence, bool right, DraftExperience& experience);

  DraftConstants constants_;
  double bias_ = 0;
  double variance_;
  std::array<double, kDraftRowsMax> rate_ = {};
  int64_t drafted_ = 0;
  int64_t accepted_ = 0;
};

}  // namespace tensorfold
