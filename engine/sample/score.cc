// See the header. Pure.
#include "engine/sample/score.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"

namespace tensorfold {

void score(const Sampler& sampler, const SampleSpec& spec, std::span<const float> logits,
           std::span<const int32_t> next, SampledTokens& out) {
  const auto vocab = static_cast<size_t>(sampler.vocab_size());
  TF_CHECK_EQ(logits.size(), next.size() * vocab);
  out.slot = spec.slot;
  for (size_t i = 0; i < next.size(); ++i) {
    const auto row = logits.subspan(i * vocab, vocab);
    if (!std::all_of(row.begin(), row.end(), [](float l) { return std::isfinite(l); })) {
      out.status =
          Status(StatusCode::kInternal, "the model gave NaN or infinity in a row of the prompt", "",
                 std::string(kReasonNonFinite));
      return;
    }
    SampledLogprob one = sampler.logprob(row, next[i], spec.prompt_logprobs);
    const float own = row[static_cast<size_t>(next[i])];
    one.rank = 1 + static_cast<int32_t>(
                       std::count_if(row.begin(), row.end(), [&](float l) { return l > own; }));
    out.scores.push_back(std::move(one));
  }
}

}  // namespace tensorfold
