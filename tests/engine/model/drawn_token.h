// What the host's sampler makes of a row of logits that a device was asked to choose from.
#pragma once

#include <span>

#include "engine/sample/sampler.h"
#include "kernels/sample_rows.h"

namespace tensorfold::test {

// -1: none can be drawn.
inline int32_t drawn_token(std::span<const float> logits, const SampleRow& row) {
  Sampler sampler(static_cast<int>(logits.size()));
  SampleSpec spec;
  spec.seed = row.seed;
  spec.choice_index = row.choice_index;
  spec.temperature = row.greedy != 0 ? 0.0f : row.temperature;
  spec.min_p = row.min_p;
  TokenHistory history;
  const Result<int32_t> token = sampler.sample(logits, spec, row.position, history, {});
  return token.ok() ? *token : -1;
}

}  // namespace tensorfold::test
