// The masks of a step: who has one, who sits the step out, and what their forms force
// (engine/engine_loop.h, engine/mask_desk.h). Owner: the engine thread.
#include <algorithm>

#include "engine/base/check.h"
#include "engine/engine_loop.h"

namespace tensorfold {

// Makes the mask rows of all sequences that may be sampled from in the next step. True: some are
// held back.
bool EngineLoop::ready_masks(std::vector<DraftChoice>& choices) {
  bool held = false;
  for (const auto& run : running_) {
    if (!run || !run->submission.mask) continue;
    const bool generating = planner_.generating(run->slot);
    if (!generating) {
      // Only its last rows are sampled from.
      const bool sampled = run->submission.price.reply_tokens > 0 &&
                           planner_.fill_left(run->slot) <= options_.planner.prefill_rows;
      if (!sampled) continue;
    }
    const auto at = std::find_if(choices.begin(), choices.end(),
                                 [&](const DraftChoice& c) { return c.slot == run->slot; });
    TF_CHECK(at != choices.end());
    held = !ready_masks(*run, *at, generating) || held;
  }
  parts_.board.masks_put_off.store(masks_.put_off(), std::memory_order_relaxed);
  return held;
}

bool EngineLoop::ready_masks(Run& run, DraftChoice& choice, bool generating) {
  DraftPath path;
  if (generating && run.submission.request.draft && !no_drafts()) {
    path.most = static_cast<int32_t>(
        std::min({planner_.reply_left(run.slot) - 1, int64_t{run.reply.drafts_allowed()},
                  int64_t{options_.planner.draft_rows}}));
    const auto chosen = static_cast<size_t>(std::clamp<int32_t>(choice.verify, 0, path.most));
    path.drafts = std::span(run.last.drafts).first(std::min(chosen, run.last.drafts.size()));
  }
  masks_.make_rows(run.form, path, [this](TokenId id) { return parts_.text.ends_reply(id); });
  choice.held = run.form.rows == 0;
  choice.verify = std::max(0, run.form.rows - 1);
  if (run.form.drafter_rows < choice.verify) choice.given = run.form.path;
  return !choice.held;
}

void EngineLoop::fill_masks(StepPlan& plan) const {
  const auto words = static_cast<size_t>(plan.mask_words);
  for (const SampleSpec& sample : plan.samples) {
    if (sample.mask_slot < 0) continue;
    const Run& run = *running_[static_cast<size_t>(sample.slot)];
    TF_CHECK_LE(sample.verify_rows, run.form.rows);
    const auto rows = static_cast<size_t>(sample.verify_rows) * words;
    std::copy_n(run.form.bits.begin(), rows,
                plan.masks.begin() +
                    static_cast<ptrdiff_t>(sample.mask_slot) * static_cast<ptrdiff_t>(words));
  }
}

}  // namespace tensorfold
