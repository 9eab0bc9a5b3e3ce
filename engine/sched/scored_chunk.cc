// Chunks of prompts whose tokens get log-probabilities (engine/sched/planner.h): every row runs the
// decoder and has logits, so they are short and one a step. Owner: the engine thread.
#include <algorithm>

#include "engine/base/check.h"
#include "engine/sched/planner.h"

namespace tensorfold {

// Of the sequences that fill and score: the one that waited longest; -1: there is none.
SlotId Planner::next_scored() const {
  SlotId best = -1;
  for (SlotId slot = 0; slot < options_.slots; ++slot) {
    const Sequence& s = sequences_[static_cast<size_t>(slot)];
    if (!s.open || !scores(s) || s.computed >= s.prompt_tokens || held(slot)) continue;
    if (best < 0 || s.waited_steps > at(best).waited_steps) best = slot;
  }
  return best;
}

void Planner::add_scored(SlotId slot, int64_t rows, StepPlan& plan) {
  Sequence& s = at(slot);
  TF_CHECK_LE(rows, kScoredRowsMax);
  Slice slice;
  slice.slot = slot;
  slice.first_position = s.computed;
  slice.rows = static_cast<int32_t>(rows);
  slice.decoder_rows = slice.rows;
  give_tokens(s, slice, plan);
  const int64_t end = s.computed + rows;
  const auto known = static_cast<int64_t>(s.ids.size());
  const bool last = end == known && s.spec.reply_tokens > 0;
  add_sample(s, slice, last ? 1 : 0, last ? s.propose : 0, plan);
  SampleSpec& sample = plan.samples.back();
  sample.scored_rows = slice.rows - sample.verify_rows;
  slice.logits_rows = slice.rows;
  if (!last) {
    // Nothing is sampled; the next id is known. Behind a prompt without a reply any one stands in.
    sample.position = end;
    sample.reply_position = std::min(sample.reply_position, sample.position);
    sample.draft_rows = 0;
    plan.tokens.push_back(s.ids[static_cast<size_t>(std::min(end, known - 1))]);
  }
  cover(s, slot, end, plan);
  s.planned_rows = rows;
  plan.slices.push_back(slice);
}

}  // namespace tensorfold
