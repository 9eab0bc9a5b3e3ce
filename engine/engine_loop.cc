// The turns of the engine thread. See the header.
#include "engine/engine_loop.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

constexpr double kSecondUs = 1e6;

FinishReason reason_of(const Status& status) {
  return status.code() == StatusCode::kCancelled ? FinishReason::kCancelled : FinishReason::kFailed;
}

int32_t mask_words(int vocab) { return (vocab + 31) / 32; }

}  // namespace

EngineLoop::Run::Run(Submission&& s, const TextCodec& text)
    : submission(std::move(s)),
      reply(submission.request, submission.prompt.starts_in_reasoning,
            submission.price.reply_tokens, text) {
  form.source = submission.mask;
  if (form.source) form.state = form.source->start();
}

EngineLoop::EngineLoop(const LoopOptions& options, const LoopParts& parts)
    : options_(options),
      parts_(parts),
      cache_(options.prefix),
      spilled_(cache_, options.tier),
      planner_(options.planner, spilled_),
      masks_(options.masks, options.vocab) {}

// ---------------------------------------------------------------- coming and going

SequenceSpec EngineLoop::sequence_spec(const Submission& submission) const {
  const Request& request = submission.request;
  const SamplingParams& p = request.sampling;
  SequenceSpec spec;
  spec.request = submission.ticket->id();
  spec.prompt = submission.prompt.ids;
  spec.reply_tokens = submission.price.reply_tokens;
  spec.blocks = submission.price.blocks;
  spec.head_tokens = submission.prompt.head_tokens;
  spec.draft = request.draft;
  spec.background = request.background;
  spec.client = request.label;
  spec.cache_salt = request.cache_salt;
  spec.cold = spec.request == kCanaryRequest;
  SampleSpec& s = spec.sampling;
  s.seed = p.seed;
  s.choice_index = p.choice_index;
  s.temperature = static_cast<float>(p.temperature);
  s.top_p = static_cast<float>(p.top_p);
  s.min_p = static_cast<float>(p.min_p);
  s.top_k = p.top_k;
  s.presence_penalty = static_cast<float>(p.presence_penalty);
  s.frequency_penalty = static_cast<float>(p.frequency_penalty);
  s.repetition_penalty = static_cast<float>(p.repetition_penalty);
  s.top_logprobs = request.top_logprobs;
  s.prompt_logprobs = request.prompt_logprobs;
  s.logit_bias = p.logit_bias;
  return spec;
}

void EngineLoop::take(Submission&& submission) {
  if (failed() || apart()) {
    submission.ticket->finish(failed() ? broken_ : lost_, FinishReason::kFailed, {});
    return;
  }
  SequenceSpec spec = sequence_spec(submission);
  waiting_.push_back(std::move(submission));
  if (planner_.prefix_ready(spec)) {
    planner_.enqueue(std::move(spec));
  } else {
    reading_.push_back(std::move(spec));
  }
}

void EngineLoop::queue_read() {
  spilled_.poll();
  for (size_t i = 0; i < reading_.size();) {
    if (!planner_.prefix_ready(reading_[i])) {
      ++i;
      continue;
    }
    planner_.enqueue(std::move(reading_[i]));
    reading_.erase(reading_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void EngineLoop::unqueue(uint64_t request) {
  const auto at = std::find_if(reading_.begin(), reading_.end(),
                               [&](const SequenceSpec& s) { return s.request == request; });
  if (at == reading_.end()) {
    TF_CHECK(planner_.remove(request));
    return;
  }
  planner_.forget_prefix(request);
  reading_.erase(at);
}

void EngineLoop::finish_spilling(int64_t wait_us) {
  if (options_.tier == nullptr) return;
  const int64_t end = parts_.clock.monotonic_us() + wait_us;
  const auto left = [&] { return std::max<int64_t>(0, end - parts_.clock.monotonic_us()); };
  while (left() > 0 && !apart() && parts_.board.state.load() != EngineStats::State::kFailed) {
    spilled_.poll();
    if (!planner_.has_work()) {
      // Either all is given to the tier, or it has no room before some is written.
      options_.tier->settle(left());
      spilled_.poll();
      if (!planner_.has_work()) break;
    }
    step();
  }
  options_.tier->settle(left());
}

void EngineLoop::let_go() {
  const int64_t now = parts_.clock.monotonic_us();
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Status why = reason_to_stop(*it->ticket, it->request, now);
    if (why.ok() && now - it->submitted_us >= options_.queue_deadline_us)
      why = unavailable("all slots were busy for " +
                            std::to_string(options_.queue_deadline_us / 1'000'000) + " s",
                        "queue_deadline");
    if (why.ok()) {
      ++it;
      continue;
    }
    unqueue(it->ticket->id());
    const auto ticket = it->ticket;
    it = waiting_.erase(it);
    ticket->finish(why, reason_of(why), {});
  }
  for (auto& run : running_) {
    if (!run) continue;
    const Status why = reason_to_stop(*run->submission.ticket, run->submission.request, now);
    if (!why.ok()) finish(*run, why, reason_of(why));
  }
  for (size_t i = set_aside_.size(); i-- > 0;) {
    Run& run = *set_aside_[i];
    const Status why = reason_to_stop(*run.submission.ticket, run.submission.request, now);
    if (!why.ok()) finish(run, why, reason_of(why));
  }
}

void EngineLoop::admit() {
  const std::vector<Admitted> admitted = planner_.admit();
  for (const SetAside& s : planner_.set_aside()) {
    std::unique_ptr<Run>& run = running_[static_cast<size_t>(s.slot)];
    run->slot = -1;
    run->last = {};
    set_aside_.push_back(std::move(run));
    parts_.board.preemptions.fetch_add(1, std::memory_order_relaxed);
  }
  for (const Admitted& a : admitted) {
    if (a.resumed) {
      const auto at = std::find_if(set_aside_.begin(), set_aside_.end(), [&](const auto& run) {
        return run->submission.ticket->id() == a.request;
      });
      TF_CHECK(at != set_aside_.end());
      (*at)->slot = a.slot;
      // It may have to compute what it was told it had not to.
      (*at)->cached_tokens = std::min((*at)->cached_tokens, static_cast<int>(a.cached_positions));
      running_[static_cast<size_t>(a.slot)] = std::move(*at);
      set_aside_.erase(at);
      continue;
    }
    const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                                 [&](const Submission& s) { return s.ticket->id() == a.request; });
    TF_CHECK(at != waiting_.end());
    auto owned = std::make_unique<Run>(std::move(*at), parts_.text);
    waiting_.erase(at);
    Run& run = *owned;
    running_[static_cast<size_t>(a.slot)] = std::move(owned);
    begin(run, a);
  }
}

void EngineLoop::begin(Run& run, const Admitted& a) {
  run.slot = a.slot;
  run.admitted_us = parts_.clock.monotonic_us();
  run.cached_tokens = run.filled_told = static_cast<int>(a.cached_positions);
  const auto prompt = run.submission.prompt.ids.size();
  if (!internal(run)) {
    parts_.board.requests.fetch_add(1, std::memory_order_relaxed);
    parts_.board.prompt_tokens.fetch_add(prompt, std::memory_order_relaxed);
    parts_.board.cached_tokens.fetch_add(static_cast<uint64_t>(a.cached_positions),
                                         std::memory_order_relaxed);
  }
  Ticket& ticket = *run.submission.ticket;
  ticket.sink().on_accepted(ticket.id(), static_cast<int>(prompt), run.cached_tokens);
  // No tokens wanted: only the prompt is filled (commit_fill ends it).
  if (run.submission.price.reply_tokens == 0) return;
  // A budget of none puts in the end of thinking.
  const ReplyState::Commit commit = run.reply.take({});
  if (commit.force) {
    planner_.force(run.slot, *commit.force);
    note_forced(run, *commit.force);
    publish(run, std::span(&*commit.force, 1), {});
  }
  if (commit.ended) finish(run, ok_status(), commit.reason);
}

void EngineLoop::finish(Run& run, const Status& status, FinishReason reason) {
  const int64_t now = parts_.clock.monotonic_us();
  const int64_t prefilled = run.first_token_us > 0 ? run.first_token_us : now;
  ReplyStats stats;
  stats.usage.prompt_tokens = static_cast<int>(run.submission.prompt.ids.size());
  stats.usage.cached_tokens = run.cached_tokens;
  stats.usage.completion_tokens = run.reply.completion_tokens();
  stats.usage.reasoning_tokens = run.reply.reasoning_tokens();
  stats.sampling_seed = run.submission.request.sampling.seed;
  stats.token_sha = run.reply.token_sha();
  stats.queue_s = static_cast<double>(run.admitted_us - run.submission.submitted_us) / kSecondUs;
  stats.prefill_s = static_cast<double>(prefilled - run.admitted_us) / kSecondUs;
  stats.decode_s = static_cast<double>(now - prefilled) / kSecondUs;
  stats.rounds = run.rounds;
  stats.drafted = static_cast<int>(run.drafting.acceptance.drafted());
  stats.accepted = static_cast<int>(run.drafting.acceptance.accepted());
  stats.annotations = std::move(run.submission.annotations);
  stats.loop_closed_thinking = run.reply.loop_closed_thinking();
  stats.loop_ended = run.reply.loop_ended();
  if (!status.ok() && status.code() == StatusCode::kInternal)
    parts_.log.warning("request " + std::to_string(run.submission.ticket->id()) +
                       " failed: " + status.message());
  const bool answer = status.ok() && !internal(run) && run.submission.price.reply_tokens > 0;
  if (parts_.health != nullptr && answer)
    parts_.health->answered(reason != FinishReason::kToolCalls &&
                            stats.usage.completion_tokens == stats.usage.reasoning_tokens);
  const auto ticket = run.submission.ticket;
  if (run.slot >= 0) {
    planner_.close(run.slot, status.reason() == kReasonNonFinite);
    running_[static_cast<size_t>(run.slot)].reset();  // `run` is gone
  } else {
    TF_CHECK(planner_.remove(ticket->id()));
    std::erase_if(set_aside_, [&](const auto& other) { return other.get() == &run; });
  }
  publish_gauges();
  ticket->finish(status, reason, stats);
}

void EngineLoop::end_all(const Status& status) {
  broken_ = status;
  end_requests(status);
}

void EngineLoop::end_requests(const Status& status) {
  while (!waiting_.empty()) {
    const auto ticket = waiting_.front().ticket;
    unqueue(ticket->id());
    waiting_.pop_front();
    ticket->finish(status, FinishReason::kFailed, {});
  }
  for (auto& run : running_) {
    if (run) finish(*run, status, FinishReason::kFailed);
  }
  while (!set_aside_.empty()) finish(*set_aside_.back(), status, FinishReason::kFailed);
  publish_gauges();
}

void EngineLoop::fail(const Status& status) {
  parts_.log.error("the engine failed: " + status.to_string());
  parts_.board.set_state(EngineStats::State::kFailed, status.message());
  end_all(unavailable("the engine failed: " + status.message(), "engine_failed"));
}

// A step that storage failed ends its own requests; the others wait for the next one.
void EngineLoop::break_off(const StepPlan& plan, const Status& status) {
  parts_.log.error("step " + std::to_string(plan.step) + ": " + status.message() +
                   "; its requests end");
  for (const Slice& slice : plan.slices) {
    auto& run = running_[static_cast<size_t>(slice.slot)];
    if (run) finish(*run, status, FinishReason::kFailed);
  }
}

// ---------------------------------------------------------------- one turn

bool EngineLoop::turn() {
  if (failed() || !together()) return false;
  let_go();
  queue_read();
  admit();
  const bool work = planner_.has_work();
  if (work) {
    step();
  } else if (options_.group != nullptr) {
    options_.group->idle();
  }
  watch_health();
  publish_gauges();
  return work;
}

void EngineLoop::step() {
  masks_.begin_step();
  std::vector<DraftChoice> choices = choose_drafts();
  const bool held = ready_masks(choices);
  std::vector<SlotId> constrained;
  for (const auto& run : running_) {
    if (run && run->submission.mask) constrained.push_back(run->slot);
  }
  StepPlan plan = planner_.plan(choices, constrained, mask_words(options_.vocab));
  fill_masks(plan);
  if (held && plan.slices.empty()) masks_.wait(kMaskWaitUs);
  const int64_t begin = parts_.clock.monotonic_us();
  Status status;
  try {
    status = parts_.runner.run(plan, results_);
  } catch (const std::exception& e) {
    status = internal_error(std::string("step ") + std::to_string(plan.step) + ": " + e.what());
  }
  if (status.ok() && results_.size() != plan.samples.size())
    status = internal_error("the step gave results for other sequences than it was asked for");
  if (!status.ok() && options_.group != nullptr) return lose(status);
  if (status.reason() == kReasonStorage) return break_off(plan, status);
  if (!status.ok()) return fail(status);
  commit(plan, results_, parts_.clock.monotonic_us() - begin);
}

// How many of the drafts that lie ready may be verified at all.
int32_t EngineLoop::drafts_usable(Run& run) {
  const auto left =
      static_cast<int32_t>(std::min<int64_t>(planner_.reply_left(run.slot) - 1, kDraftRowsMax));
  int32_t usable = std::min({planner_.drafts_ready(run.slot), left, run.reply.drafts_allowed()});
  // Nothing follows the end of the reply, and the row before it samples that end by itself.
  for (int32_t i = 0; i < usable && !run.submission.request.ignore_eos; ++i) {
    if (parts_.text.ends_reply(run.last.drafts[static_cast<size_t>(i)])) usable = i;
  }
  if (!run.submission.mask) return usable;
  if (!masks_.catch_up(run.form)) return 0;
  // A draft that the constraint forbids could only be rejected; nor is there a mask behind it.
  MaskState state = run.form.state;
  for (int32_t i = 0; i < usable; ++i) {
    const TokenId draft = run.last.drafts[static_cast<size_t>(i)];
    state = run.submission.mask->next(state, draft);
    if (state == kMaskDead) usable = i;
  }
  return usable;
}

std::vector<DraftChoice> EngineLoop::choose_drafts() {
  std::vector<DepthQuery> queries;
  std::vector<Run*> runs;
  std::vector<DraftChoice> choices;
  int32_t other_rows = 0;
  for (const auto& run : running_) {
    if (!run) continue;
    if (!planner_.generating(run->slot)) {
      const int64_t left = planner_.fill_left(run->slot);
      other_rows += static_cast<int32_t>(std::min<int64_t>(left, options_.planner.prefill_rows));
      const bool first = run->drafting.begin_reply(parts_.depth_policy) && !no_drafts();
      choices.push_back({run->slot, 0, first ? options_.planner.draft_rows : 0});
      continue;
    }
    DepthQuery q;
    q.slot = run->slot;
    q.available = no_drafts() ? 0 : drafts_usable(*run);
    q.confidence = run->last.draft_confidence;
    q.acceptance = &run->drafting.acceptance;
    const auto usable = std::min(q.confidence.size(), static_cast<size_t>(q.available));
    const auto confidence = q.confidence.first(usable);
    q.drafting = run->drafting.begin_round(parts_.depth_policy, confidence) &&
                 run->submission.request.draft && !no_drafts();
    run->drafts_ready = planner_.drafts_ready(run->slot);
    queries.push_back(q);
    runs.push_back(run.get());
  }
  other_rows = std::min(other_rows, options_.planner.prefill_rows);
  const std::vector<int32_t> depths = parts_.depth_policy.choose(queries, other_rows);
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool proposing = runs[i]->drafting.proposing && !no_drafts();
    const int32_t propose = proposing ? options_.planner.draft_rows : 0;
    choices.push_back({queries[i].slot, depths[i], propose});
  }
  return choices;
}

}  // namespace tensorfold
