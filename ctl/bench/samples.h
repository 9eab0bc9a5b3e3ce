// Columns of samples: what every cell of a report lists.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ctl/bench/completion.h"
#include "ctl/bench/figures.h"
#include "engine/base/json.h"

namespace tensorfold::ctl::bench {

std::vector<double> column(std::span<const Sample> samples, double (*figure)(const Sample&));

// prompt_tokens, completion_tokens, cached_tokens (null: not said), finish_reasons and, where the
// server gives them, token_shas, as lists in the order of the samples.
void add_counts(Json& cell, std::span<const Sample> samples);

bool identical_texts(std::span<const Sample> samples);

// Whether a prompt was computed whole. A server that does not say is believed.
bool is_cold(const Sample& sample);

}  // namespace tensorfold::ctl::bench
