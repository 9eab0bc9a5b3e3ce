// What a step gave becomes replies: commit, publish, counters (engine/engine_loop.h). Owner: the
// engine thread.
#include <algorithm>

#include "engine/base/check.h"
#include "engine/engine_loop.h"
#include "engine/spill_figures.h"

namespace tensorfold {

void EngineLoop::commit(const StepPlan& plan, const std::vector<SampledTokens>& results,
                        int64_t step_us) {
  int64_t tokens = 0;
  size_t next = 0;  // slices and samples are both ascending by slot
  for (const Slice& slice : plan.slices) {
    Run& run = *running_[static_cast<size_t>(slice.slot)];
    const bool asked = next < plan.samples.size() && plan.samples[next].slot == slice.slot;
    const bool failed = asked && !results[next].status.ok();
    if (!failed) publish_scores(run, slice, asked ? &results[next] : nullptr);
    const bool sampled = asked && (failed || plan.samples[next].verify_rows > 0);
    if (!sampled) {
      next += asked ? 1 : 0;
      planner_.advance(slice.slot, {}, 0);
      commit_fill(run, slice);
      continue;
    }
    tokens += static_cast<int64_t>(results[next].accepted.size());
    if (slice.row_class == RowClass::kGenerated) {
      ++run.rounds;
    } else {
      commit_fill(run, slice);
    }
    commit_sample(run, plan.samples[next], results[next]);
    ++next;
  }
  count_step(plan, tokens, step_us);
}

// Tells of prompt rows; those of a sequence that was set aside have been told of before.
void EngineLoop::commit_fill(Run& run, const Slice& slice) {
  const auto prompt = static_cast<int>(run.submission.prompt.ids.size());
  const auto done = static_cast<int>(slice.first_position + slice.rows);
  if (slice.row_class == RowClass::kPrompt && done > run.filled_told) {
    run.filled_told = done;
    run.submission.ticket->sink().on_progress(done, prompt);
  }
  if (done == prompt && run.submission.price.reply_tokens == 0)
    finish(run, ok_status(), FinishReason::kLength);
}

// Tells of the log-probabilities of prompt tokens, each once; those that a sequence was set aside
// with come again.
void EngineLoop::publish_scores(Run& run, const Slice& slice, const SampledTokens* result) {
  if (run.submission.request.prompt_logprobs < 0 || slice.row_class != RowClass::kPrompt) return;
  const std::vector<TokenId>& prompt = run.submission.prompt.ids;
  std::vector<TokenLogprob> tokens;
  if (run.scored_told == 0) tokens.push_back({prompt[0], 0.0F, {}});
  const size_t scored = result == nullptr ? 0 : result->scores.size();
  for (size_t i = 0; i < scored; ++i) {
    const auto at = static_cast<size_t>(slice.first_position) + i + 1;
    if (at < static_cast<size_t>(run.scored_told) + tokens.size() || at >= prompt.size()) continue;
    const SampledLogprob& one = result->scores[i];
    tokens.push_back({prompt[at], one.logprob, one.top, one.rank});
  }
  run.scored_told += static_cast<int>(tokens.size());
  if (!tokens.empty()) run.submission.ticket->sink().on_prompt_logprobs(tokens);
}

void EngineLoop::commit_sample(Run& run, const SampleSpec& sample, const SampledTokens& result) {
  if (!result.status.ok()) return fail_sample(run, result);
  const std::vector<TokenId>& accepted = result.accepted;
  const auto right = static_cast<int32_t>(accepted.size()) - 1;
  learn_drafting(run, sample, result);
  if (!internal(run)) {
    parts_.board.drafted.fetch_add(static_cast<uint64_t>(sample.verify_rows - 1),
                                   std::memory_order_relaxed);
    parts_.board.accepted.fetch_add(static_cast<uint64_t>(right), std::memory_order_relaxed);
  }
  planner_.advance(run.slot, accepted, static_cast<int32_t>(result.drafts.size()));
  run.last = result;
  if (run.first_token_us == 0) run.first_token_us = parts_.clock.monotonic_us();

  const ReplyState::Commit commit = run.reply.take(accepted);
  std::vector<TokenId> tokens(accepted.begin(),
                              accepted.begin() + static_cast<ptrdiff_t>(commit.kept));
  if (run.submission.mask) {
    for (const TokenId id : tokens) run.form.unread.push_back({id, false});
  }
  if (commit.loop) note_loop(run, !commit.force);
  if (commit.force) {
    tokens.push_back(*commit.force);
    note_forced(run, *commit.force);
  }
  if (!tokens.empty()) publish(run, tokens, result);
  if (commit.ended) return finish(run, ok_status(), commit.reason);
  if (commit.force) planner_.force(run.slot, *commit.force);
}

// A token that was put in: what it means to the constraint counts, but it needs no permission.
void EngineLoop::note_forced(Run& run, TokenId id) {
  if (!run.submission.mask) return;
  run.form.unread.push_back({id, true});
}

void EngineLoop::note_loop(const Run& run, bool ended) {
  (ended ? parts_.board.loops_ended : parts_.board.loops_closed)
      .fetch_add(1, std::memory_order_relaxed);
  const std::string id = std::to_string(run.submission.ticket->id());
  parts_.log.write(LogLevel::kNotice,
                   "request " + id + " goes round in circles after " +
                       std::to_string(run.reply.completion_tokens()) +
                       " tokens: " + (ended ? "it is ended" : "its thinking is closed"),
                   {{"TF_EVENT", "reply_loop"},
                    {"TF_REQUEST", id},
                    {"TF_ACTION", ended ? "ended" : "closed_thinking"}});
}

// A row failed. Tokens of the rows before it count: without drafts they had come in steps of their
// own, and one of them may have ended the reply.
void EngineLoop::fail_sample(Run& run, const SampledTokens& result) {
  ReplyState::Commit commit;
  if (!result.accepted.empty()) commit = run.reply.take(result.accepted);
  if (commit.kept > 0) publish(run, std::span(result.accepted).first(commit.kept), result);
  if (commit.ended) return finish(run, ok_status(), commit.reason);
  finish(run, result.status, FinishReason::kFailed);
}

void EngineLoop::learn_drafting(Run& run, const SampleSpec& sample, const SampledTokens& result) {
  const auto ready = std::min(static_cast<size_t>(run.drafts_ready), run.last.drafts.size());
  run.drafts_ready = 0;
  // The drafter is judged by its own drafts, which come before those that the form forced.
  int32_t own = sample.verify_rows - 1;
  std::span<const TokenId> accepted = result.accepted;
  if (run.submission.mask) {
    own = std::min(own, run.form.drafter_rows);
    accepted = accepted.first(std::min(accepted.size(), static_cast<size_t>(own) + 1));
  }
  const int32_t forced = sample.verify_rows - 1 - own;
  const auto right = static_cast<int32_t>(result.accepted.size() - accepted.size());
  parts_.board.forced_drafted.fetch_add(static_cast<uint64_t>(forced), std::memory_order_relaxed);
  parts_.board.forced_accepted.fetch_add(static_cast<uint64_t>(right), std::memory_order_relaxed);
  const bool reached = std::ssize(accepted) == own + 1;  // no draft before them was wrong
  if (forced > 0 && reached) run.form.forced_most = std::min(right + 1, kDraftRowsMax);
  const bool paused =
      run.drafting.end_round(std::span(run.last.drafts).first(ready), run.last.draft_confidence,
                             own, accepted, parts_.depth_policy);
  if (parts_.health != nullptr)
    parts_.health->drafts(parts_.clock.monotonic_us(), run.drafting.outcomes, run.drafting.right);
  if (!paused) return;
  parts_.board.draft_pauses.fetch_add(1, std::memory_order_relaxed);
  pause_log_.note(run.submission.ticket->id(), run.drafting, parts_.clock.monotonic_us(),
                  parts_.log);
}

void EngineLoop::publish(Run& run, std::span<const TokenId> tokens, const SampledTokens& result) {
  if (!internal(run))
    parts_.board.completion_tokens.fetch_add(tokens.size(), std::memory_order_relaxed);
  std::vector<TokenLogprob> logprobs;
  if (run.submission.request.top_logprobs >= 0) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      // A token that was put in instead of sampled is certain.
      if (i < result.logprobs.size()) {
        logprobs.push_back({tokens[i], result.logprobs[i].logprob, result.logprobs[i].top});
      } else {
        logprobs.push_back({tokens[i], 0.0F, {}});
      }
    }
  }
  run.submission.ticket->sink().on_tokens(tokens, logprobs);
}

void EngineLoop::count_step(const StepPlan& plan, int64_t tokens, int64_t step_us) {
  int64_t prompt_rows = 0;
  int64_t generated_rows = 0;
  for (const Slice& s : plan.slices)
    (s.row_class == RowClass::kPrompt ? prompt_rows : generated_rows) += s.rows;
  StatsBoard& board = parts_.board;
  const int64_t now = parts_.clock.monotonic_us();
  // A mixed step counts in full for both: that is how long either had to wait.
  if (prompt_rows > 0) {
    board.prefill.add(now, prompt_rows, step_us);
    board.prefill_us.fetch_add(step_us, std::memory_order_relaxed);
  }
  if (generated_rows > 0) {
    board.decode.add(now, tokens, step_us);
    parts_.depth_policy.observe(tokens);
    board.decode_us.fetch_add(step_us, std::memory_order_relaxed);
    board.rounds.fetch_add(1, std::memory_order_relaxed);
  }
  board.steps.fetch_add(1, std::memory_order_relaxed);
}

void EngineLoop::publish_gauges() {
  StatsBoard& board = parts_.board;
  board.slots_busy.store(planner_.busy(), std::memory_order_relaxed);
  board.prefilling.store(planner_.prefilling(), std::memory_order_relaxed);
  const auto paused = [](const auto& run) { return run && run->drafting.pause.paused(); };
  board.drafts_paused.store(
      static_cast<int>(std::count_if(running_.begin(), running_.end(), paused)),
      std::memory_order_relaxed);
  board.pool_tokens_used.store(planner_.ledger().used() * kBlockPositions,
                               std::memory_order_relaxed);
  publish_cache();
}

void EngineLoop::publish_cache() {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  StatsBoard& board = parts_.board;
  const PrefixStats s = cache_.stats();
  board.pool_tokens_cached.store(planner_.ledger().cached() * kBlockPositions, kRelaxed);
  board.cache_blocks.store(s.blocks, kRelaxed);
  board.cache_snapshots.store(s.snapshots, kRelaxed);
  board.cache_snapshot_bytes.store(s.snapshot_bytes, kRelaxed);
  board.cache_snapshot_bytes_max.store(s.snapshot_bytes_max, kRelaxed);
  board.cache_lookups.store(s.lookups, kRelaxed);
  board.cache_hits.store(s.hits, kRelaxed);
  board.cache_kept.store(s.kept, kRelaxed);
  board.cache_evicted.store(s.evicted, kRelaxed);
  board.cache_flushes.store(s.flushes, kRelaxed);
  board.spill.store(spill_figures(options_.tier, spilled_.stats()));
}

}  // namespace tensorfold
