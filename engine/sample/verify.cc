// Exact-match verification. Pure but for the history it extends.
#include "engine/sample/verify.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tensorfold {

void verify(Sampler& sampler, const SampleSpec& spec, std::span<const float> logits,
            std::span<const int32_t> drafts, std::span<const uint32_t> masks, TokenHistory& history,
            SampledTokens& out) {
  const auto rows = static_cast<size_t>(spec.verify_rows);
  const auto vocab = static_cast<size_t>(sampler.vocab_size());
  TF_CHECK_EQ(logits.size(), rows * vocab);
  TF_CHECK_EQ(drafts.size() + 1, rows);
  TF_CHECK_EQ(history.size(), spec.position);
  const size_t words = masks.size() / rows;
  out.slot = spec.slot;
  for (size_t i = 0; i < rows; ++i) {
    const auto row = logits.subspan(i * vocab, vocab);
    const int64_t position = spec.position + static_cast<int64_t>(i);
    const auto mask = masks.empty() ? masks : masks.subspan(i * words, words);
    const auto token = sampler.sample(row, spec, position, history, mask);
    if (!token.ok()) {
      out.status = token.status();
      return;
    }
    out.accepted.push_back(*token);
    if (spec.top_logprobs >= 0)
      out.logprobs.push_back(sampler.logprob(row, *token, spec.top_logprobs));
    history.write(position, std::span(&*token, 1));
    if (i + 1 < rows && drafts[i] != *token) return;
  }
}

void verify_chosen(const SampleSpec& spec, std::span<const int32_t> tokens,
                   std::span<const int32_t> states, std::span<const int32_t> drafts,
                   TokenHistory& history, SampledTokens& out) {
  const auto rows = static_cast<size_t>(spec.verify_rows);
  TF_CHECK_EQ(tokens.size(), rows);
  TF_CHECK_EQ(states.size(), rows);
  TF_CHECK_EQ(drafts.size() + 1, rows);
  TF_CHECK_EQ(history.size(), spec.position);
  out.slot = spec.slot;
  for (size_t i = 0; i < rows; ++i) {
    const int64_t position = spec.position + static_cast<int64_t>(i);
    if (states[i] != static_cast<int32_t>(SampleState::kDone)) {
      out.status = non_finite_row(position);  // no mask, so nothing else can be the matter
      return;
    }
    out.accepted.push_back(tokens[i]);
    history.write(position, tokens.subspan(i, 1));
    if (i + 1 < rows && drafts[i] != tokens[i]) return;
  }
}

namespace {

bool is_plain(const SampleSpec& s) {
  const bool penalty =
      s.presence_penalty != 0 || s.frequency_penalty != 0 || s.repetition_penalty != 1;
  const bool nucleus = s.temperature >= kGreedyBelow && (s.top_k > 0 || s.top_p < 1);
  return s.scored_rows == 0 && s.top_logprobs < 0 && s.mask_slot < 0 && s.logit_bias.empty() &&
         !penalty && !nucleus;
}

}  // namespace

std::vector<SampleRow> choice_rows(const StepPlan& plan) {
  std::vector<SampleRow> rows;
  for (const Slice& slice : plan.slices) {
    if (slice.logits_rows == 0) continue;
    const auto at = std::find_if(plan.samples.begin(), plan.samples.end(),
                                 [&](const SampleSpec& s) { return s.slot == slice.slot; });
    if (at == plan.samples.end() || !is_plain(*at)) return {};
    for (int i = 0; i < at->verify_rows; ++i) {
      SampleRow row;
      row.seed = at->seed;
      row.position = at->position + i;
      row.choice_index = at->choice_index;
      row.temperature = at->temperature;
      row.min_p = at->min_p;
      row.greedy = at->temperature < kGreedyBelow ? 1 : 0;
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace tensorfold
