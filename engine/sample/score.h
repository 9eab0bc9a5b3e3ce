// score: log-probabilities of known tokens under the rows before them, for prompts (SampleSpec,
// scored_rows). The row's own softmax: no penalty, bias, mask or temperature.
#pragma once

#include <cstdint>
#include <span>

#include "engine/sample/sampler.h"

namespace tensorfold {

// logits [scored_rows, vocab]; next [scored_rows]: the id that follows each row. Fills in
// out.scores; a row that is not finite is a failure of this sequence, in out.status.
void score(const Sampler& sampler, const SampleSpec& spec, std::span<const float> logits,
           std::span<const int32_t> next, SampledTokens& out);

}  // namespace tensorfold
