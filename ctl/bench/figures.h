// Formulas of the figures: pure functions of samples. Rates in tokens/s, times in s. A figure that
// a sample can't give (a reply of one token has no decode rate) is NaN: kept, printed as null.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ctl/bench/completion.h"

namespace tensorfold::ctl::bench {

double seconds(int64_t us);
double median(std::vector<double> values);                    // of the finite ones; NaN: none
double percentile(std::vector<double> values, double share);  // nearest rank; share in (0, 1]

double first_token_s(const Sample& sample);  // sent .. first text
double decode_tps(const Sample& sample);     // (completion tokens - 1) / (last - first)
double prefill_tps(const Sample& sample);    // prompt tokens / first_token_s

// Completion tokens that came in (from, to]: each event with text stands for an equal share; of a
// reply past its end, each moment between first and last.
double tokens_between(const Sample& sample, int64_t from_us, int64_t to_us);

// All completion tokens / (latest end - earliest start): waits for first tokens are in it.
double aggregate_tps(std::span<const Sample> samples);

// The same while every stream is between its first and its last text; NaN: there is no such time.
double steady_tps(std::span<const Sample> samples);

// Times between neighboring texts; with `from` and `to`: those that touch that span.
std::vector<double> gaps_s(const Sample& sample);
std::vector<double> gaps_s(const Sample& sample, int64_t from_us, int64_t to_us);

}  // namespace tensorfold::ctl::bench
