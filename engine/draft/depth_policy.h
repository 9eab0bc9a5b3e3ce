// DepthPolicy: how many of its drafts each sequence verifies in the next step. Decided on the head
// before planning, owned by the engine thread; a function of what it was told, without a clock. It
// can only change how fast a reply comes, never its text.
//
// What is to be maximized is tokens over time in the long run, not in each step: a row that is
// cheap now may still cost more than the same time gives elsewhere. So time has a price, the tokens
// that it usually gives, and a step is worth its expected tokens minus the price of its time
// (Dinkelbach, "On nonlinear fractional programming", 1967). The price is the running ratio of
// tokens to time, one for each number of sequences that share a step; at its first step, the best
// ratio that this step alone can have.
//
// Per sequence the chance that a draft counts falls with its place, so the best set of r draft rows
// is the r likeliest, and each sequence's share of it is a prefix of its drafts. All r are tried:
// the cost of a row may fall with their number.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/draft/acceptance.h"
#include "engine/draft/cost_table.h"
#include "engine/draft/draft_pause.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

struct DepthQuery {
  SlotId slot = 0;
  int32_t available = 0;              // drafts that may be verified
  std::span<const float> confidence;  // of each: logit of P(right | those before are); or empty
  const Acceptance* acceptance = nullptr;  // none: even chances
  bool drafting = true;                    // the drafter runs for it behind the step
};

class DepthPolicy {
 public:
  explicit DepthPolicy(const DraftConstants& constants) : experience(constants) {}
  virtual ~DepthPolicy() = default;
  // One depth per query, 0..available. `prompt_rows`: rows of the step beside those of queries.
  virtual std::vector<int32_t> choose(std::span<const DepthQuery> queries, int32_t prompt_rows) = 0;
  // The step that was chosen last gave so many tokens to the queries.
  virtual void observe(int64_t tokens) = 0;
  // What drafting is worth to a sequence in a round with this confidence, in tokens: those that its
  // drafts are expected to give, minus the price of the best number of draft rows and of its share
  // of the drafter's time. That price is what the time would give without its drafts.
  virtual double promise(const Acceptance& acceptance, std::span<const float> confidence) const = 0;
  // With as many sequences as in the step chosen last.
  virtual DraftPrice draft_price() const = 0;

  DraftExperience experience;  // of the sequences that it chooses for
};

// Always `depth`, where there are as many.
std::unique_ptr<DepthPolicy> make_fixed_depth_policy(int32_t depth);

std::unique_ptr<DepthPolicy> make_expected_gain_policy(
    const CostTable& costs, const DraftConstants& constants = kDraftConstants);

}  // namespace tensorfold
