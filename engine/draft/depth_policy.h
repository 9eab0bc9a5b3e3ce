// DepthPolicy: how many of its drafts each sequence verifies in the next step. Pure, decided on the
// head before planning. It can only change how fast a reply comes, never its text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/draft/acceptance.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

// Time of a step, in any unit: base + per_row * rows, and `draft` for each sequence that drafts.
struct RowCost {
  double base = 1.0;
  double per_row = 0.2;
  double draft = 0.0;
};

struct DepthQuery {
  SlotId slot = 0;
  int32_t available = 0;              // drafts that may be verified
  std::span<const float> confidence;  // of each: logit of P(right | those before are); or empty
  const Acceptance* acceptance = nullptr;
};

class DepthPolicy {
 public:
  virtual ~DepthPolicy() = default;
  // One depth per query, 0..available. `other_rows`: rows of the step that are there anyway,
  // beside the one row of each query.
  virtual std::vector<int32_t> choose(std::span<const DepthQuery> queries,
                                      int32_t other_rows) const = 0;
  // Does drafting pay at all for a sequence with this acceptance, `sequences` sharing each step?
  virtual bool worth_drafting(const Acceptance& acceptance, int32_t sequences) const = 0;
};

// Always `depth`, where there are as many.
std::unique_ptr<DepthPolicy> make_fixed_depth_policy(int32_t depth);

// Adds the draft row that is most likely to be accepted, of any sequence, as long as it raises
// expected tokens per unit of time. The chance of a draft is the mean of the drafter's confidence
// and the sequence's running acceptance at its place; a row counts with the product of the chances
// up to it. A sequence's survival falls with depth, so the greedy choice is the best prefix set.
std::unique_ptr<DepthPolicy> make_expected_gain_policy(const RowCost& cost);

}  // namespace tensorfold
