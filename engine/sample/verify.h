// verify: the rows of one sequence in one step become 1..verify_rows accepted tokens. Exact-match
// speculation: row i is sampled as it would be without drafts (same noise, penalties and masks that
// have seen the tokens accepted before it), and the next row counts only if its draft is that
// token. Drafts therefore never change what is sampled (docs/model.md 4, option A).
#pragma once

#include <cstdint>
#include <span>

#include <vector>

#include "engine/sample/sampler.h"
#include "kernels/sample_rows.h"

namespace tensorfold {

// logits [verify_rows, vocab]: row 0 follows the last known token, row i draft i - 1. drafts
// [verify_rows - 1]. masks [verify_rows, words] or empty. `history` holds spec.position ids and
// grows by the accepted tokens. A failure is left in out.status, with the tokens accepted before
// it.
void verify(Sampler& sampler, const SampleSpec& spec, std::span<const float> logits,
            std::span<const int32_t> drafts, std::span<const uint32_t> masks, TokenHistory& history,
            SampledTokens& out);

// The same where a device has chosen the tokens of the rows, as choice_rows() asked it to: tokens
// and states (SampleState) [verify_rows].
void verify_chosen(const SampleSpec& spec, std::span<const int32_t> tokens,
                   std::span<const int32_t> states, std::span<const int32_t> drafts,
                   TokenHistory& history, SampledTokens& out);

// What a device is asked for: a row for each row of the plan with logits, in order. Empty where one
// of them needs more than the plain draw: scores, log-probabilities, penalties, biases, masks,
// top_k, top_p.
std::vector<SampleRow> choice_rows(const StepPlan& plan);

}  // namespace tensorfold
