// Exact-match verification. Pure but for the history it extends.
#include "engine/sample/verify.h"

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

}  // namespace tensorfold
