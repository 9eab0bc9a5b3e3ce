// One step of one rank. Owner: the thread that drives the rank's model.
#include "engine/step_executor.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/sample/score.h"
#include "engine/sample/verify.h"

namespace tensorfold {
namespace {

Status bad_plan(const StepPlan& plan, SlotId slot, const std::string& what) {
  return internal_error("step " + std::to_string(plan.step) + ", slot " + std::to_string(slot) +
                        ": " + what);
}

// Rows that stand on drafts: generated ones with logits but the first.
size_t drafts_of(const Slice& slice) {
  if (slice.row_class == RowClass::kPrompt) return 0;
  return static_cast<size_t>(std::max(0, slice.logits_rows - 1));
}

// The ids that follow the scored rows of a slice.
std::span<const int32_t> ids_behind(const StepPlan& plan, const Slice& slice,
                                    const SampleSpec& sample) {
  const int32_t first = slice.token_offset + slice.rows - slice.logits_rows + 1;
  return std::span(plan.tokens)
      .subspan(static_cast<size_t>(first), static_cast<size_t>(sample.scored_rows));
}

}  // namespace

StepExecutor::StepExecutor(Model& model, StepAgreement* agreement)
    : model_(model), agreement_(agreement), sampler_(model.config().vocab_size) {}

Status StepExecutor::run(const StepPlan& plan, std::vector<SampledTokens>& results) {
  results.clear();
  Status status = prepare(plan);
  if (agreement_ != nullptr) status = agreement_->before(plan, status);
  TF_RETURN_IF_ERROR(status);
  logits_.clear();
  logits_.ask = choice_rows(plan);
  TF_RETURN_IF_ERROR(model_.forward(plan, device_tokens_, logits_));
  status = verify_rows(plan, results);
  if (agreement_ != nullptr && status.ok()) status = agreement_->after(plan, results);
  TF_RETURN_IF_ERROR(status);
  TF_RETURN_IF_ERROR(accept_rows(plan, results));
  return draft_tokens(plan, results);
}

Status StepExecutor::prepare(const StepPlan& plan) {
  TF_RETURN_IF_ERROR(apply_commands(plan));
  return take_tokens(plan);
}

// The model applies the commands to its own state; here are only the ids, which it knows of a
// sequence that starts behind a cached prefix.
Status StepExecutor::apply_commands(const StepPlan& plan) {
  std::vector<SlotId> restored;
  for (const CacheCommand& c : plan.commands) {
    Slot& slot = slots_[static_cast<size_t>(c.slot)];
    switch (c.kind) {
      case CacheCommand::Kind::kOpenSlot:
        if (slot.open) return bad_plan(plan, c.slot, "is opened twice");
        slot.open = true;
        break;
      case CacheCommand::Kind::kCloseSlot:
        if (!slot.open) return bad_plan(plan, c.slot, "is closed but not open");
        slot.open = false;
        slot.history.clear();
        slot.left.clear();
        break;
      case CacheCommand::Kind::kTruncate:
      case CacheCommand::Kind::kRestore:
        if (!slot.open) return bad_plan(plan, c.slot, "is restored but not open");
        restored.push_back(c.slot);
        break;
      default:
        break;
    }
  }
  TF_RETURN_IF_ERROR(model_.apply(plan));
  for (const SlotId slot : restored) {
    TokenHistory& history = slots_[static_cast<size_t>(slot)].history;
    history.clear();
    history.write(0, model_.ids(slot));
  }
  return ok_status();
}

Status StepExecutor::check_slice(const StepPlan& plan, const Slice& slice) {
  const Slot& slot = slots_[static_cast<size_t>(slice.slot)];
  if (!slot.open) return bad_plan(plan, slice.slot, "has rows but is not open");
  if (slice.first_position > slot.history.size())
    return bad_plan(plan, slice.slot, "rows begin behind the known ids");
  if (slice.source == TokenSource::kDevice && (static_cast<size_t>(slice.rows) > slot.left.size() ||
                                               slice.first_position + 1 != slot.history.size()))
    return bad_plan(plan, slice.slot, "asks for ids that the last step did not leave");
  return ok_status();
}

Status StepExecutor::take_tokens(const StepPlan& plan) {
  device_tokens_.assign(plan.slices.size(), {});
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    const Slice& slice = plan.slices[i];
    TF_RETURN_IF_ERROR(check_slice(plan, slice));
    Slot& slot = slots_[static_cast<size_t>(slice.slot)];
    const auto rows = static_cast<size_t>(slice.rows);
    if (slice.source == TokenSource::kDevice) {
      device_tokens_[i].assign(slot.left.begin(), slot.left.begin() + slice.rows);
      continue;
    }
    const auto offset = static_cast<size_t>(slice.token_offset);
    if (offset + rows > plan.tokens.size()) return bad_plan(plan, slice.slot, "tokens are missing");
    const auto ids = std::span(plan.tokens).subspan(offset, rows);
    for (const int32_t id : ids) {
      if (id < 0 || id >= sampler_.vocab_size())
        return bad_plan(plan, slice.slot,
                        "token " + std::to_string(id) + " is not in the vocabulary");
    }
    // Given drafts are not known to follow: only the rows before them become history.
    slot.history.write(slice.first_position, ids.first(rows - drafts_of(slice)));
  }
  return ok_status();
}

Status StepExecutor::verify_rows(const StepPlan& plan, std::vector<SampledTokens>& results) {
  const auto vocab = static_cast<size_t>(sampler_.vocab_size());
  results.resize(plan.samples.size());
  size_t row = 0;
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    const Slice& slice = plan.slices[i];
    if (slice.logits_rows == 0) continue;
    const auto wanted = static_cast<size_t>(slice.logits_rows);
    const size_t given = logits_.chosen ? logits_.tokens.size() : logits_.values.size() / vocab;
    if (row + wanted > given)
      return bad_plan(plan, slice.slot, "the model gave fewer rows of logits than were asked for");
    const auto at = std::find_if(plan.samples.begin(), plan.samples.end(),
                                 [&](const SampleSpec& s) { return s.slot == slice.slot; });
    if (at == plan.samples.end() || at->scored_rows + at->verify_rows != slice.logits_rows)
      return bad_plan(plan, slice.slot, "logits and samples do not match");
    SampledTokens& result = results[static_cast<size_t>(at - plan.samples.begin())];
    const auto scored = static_cast<size_t>(at->scored_rows);
    if (scored > 0) {
      TF_RETURN_IF_ERROR(check_scored(plan, slice, *at));
      score(sampler_, *at, std::span(logits_.values).subspan(row * vocab, scored * vocab),
            ids_behind(plan, slice, *at), result);
    }
    row += scored;
    const auto rows = static_cast<size_t>(at->verify_rows);
    if (rows == 0 || !result.status.ok()) {
      row += rows;
      continue;
    }
    Slot& slot = slots_[static_cast<size_t>(slice.slot)];
    if (at->position != slot.history.size())
      return bad_plan(plan, slice.slot, "samples a position that does not follow the known ids");
    std::span<const int32_t> drafts;
    if (rows > 1) {
      const auto offset = static_cast<size_t>(slice.token_offset);
      const auto ids =
          slice.source == TokenSource::kDevice
              ? std::span<const int32_t>(device_tokens_[i])
              : std::span(plan.tokens).subspan(offset, static_cast<size_t>(slice.rows));
      drafts = ids.last(rows - 1);
    }
    if (logits_.chosen) {
      verify_chosen(*at, std::span(logits_.tokens).subspan(row, rows),
                    std::span(logits_.states).subspan(row, rows), drafts, slot.history, result);
      row += rows;
      continue;
    }
    std::span<const uint32_t> masks;
    if (at->mask_slot >= 0) {
      const auto words = static_cast<size_t>(plan.mask_words);
      masks =
          std::span(plan.masks).subspan(static_cast<size_t>(at->mask_slot) * words, rows * words);
    }
    verify(sampler_, *at, std::span(logits_.values).subspan(row * vocab, rows * vocab), drafts,
           masks, slot.history, result);
    row += rows;
  }
  return ok_status();
}

Status StepExecutor::check_scored(const StepPlan& plan, const Slice& slice,
                                  const SampleSpec& sample) const {
  const auto behind = static_cast<size_t>(slice.token_offset) + static_cast<size_t>(slice.rows) +
                      (sample.verify_rows == 0 ? 1 : 0);
  if (slice.source != TokenSource::kGiven || behind > plan.tokens.size())
    return bad_plan(plan, slice.slot, "the ids behind scored rows are missing");
  for (const int32_t id : ids_behind(plan, slice, sample)) {
    if (id < 0 || id >= sampler_.vocab_size())
      return bad_plan(plan, slice.slot,
                      "token " + std::to_string(id) + " is not in the vocabulary");
  }
  return ok_status();
}

Status StepExecutor::accept_rows(const StepPlan& plan, const std::vector<SampledTokens>& results) {
  for (const Slice& slice : plan.slices) {
    int64_t length = slice.first_position + slice.rows;
    for (size_t i = 0; i < results.size(); ++i) {
      const SampleSpec& sample = plan.samples[i];
      if (sample.slot != slice.slot || results[i].accepted.empty()) continue;
      // The last accepted token has not been computed yet.
      length = sample.position - 1 + static_cast<int64_t>(results[i].accepted.size());
    }
    TF_RETURN_IF_ERROR(model_.accept(slice.slot, length));
  }
  return ok_status();
}

Status StepExecutor::draft_tokens(const StepPlan& plan, std::vector<SampledTokens>& results) {
  draft_requests_.clear();
  for (size_t i = 0; i < results.size(); ++i) {
    const SampledTokens& r = results[i];
    Slot& slot = slots_[static_cast<size_t>(plan.samples[i].slot)];
    slot.left.clear();
    if (!r.status.ok() || r.accepted.empty()) continue;
    slot.left.push_back(r.accepted.back());
    if (plan.samples[i].draft_rows == 0) continue;
    draft_requests_.push_back(
        {r.slot, model_.length(r.slot) - 1, r.accepted.back(), plan.samples[i].draft_rows});
  }
  if (draft_requests_.empty()) return ok_status();
  draft_results_.clear();
  TF_RETURN_IF_ERROR(model_.draft(draft_requests_, draft_results_));
  for (DraftResult& d : draft_results_) {
    const auto at = std::find_if(results.begin(), results.end(),
                                 [&](const SampledTokens& r) { return r.slot == d.slot; });
    if (at == results.end()) return bad_plan(plan, d.slot, "was drafted for but not sampled");
    Slot& slot = slots_[static_cast<size_t>(d.slot)];
    slot.left.insert(slot.left.end(), d.tokens.begin(), d.tokens.end());
    at->drafts = std::move(d.tokens);
    at->draft_confidence = std::move(d.confidence);
  }
  return ok_status();
}

}  // namespace tensorfold
