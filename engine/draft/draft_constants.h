// The fitted constants of drafting, in one place. They were fitted by the simulator:
//
//   depth_sim --fit --traces tests/data/bench/draft_traces.txt
//     with --costs tests/data/bench/row_costs_cpu.json
//
// on its fitting seeds; docs/speculation.md has what they reach on the judging seeds.
#pragma once

#include <array>

namespace tensorfold {

struct DraftConstants {
  // Acceptance: the odds of a draft before anything is known of a sequence.
  double bias = 0.5;                                        // logit
  std::array<double, 5> place = {0, 0.14, -0.1, -0.38, 0};  // by place in the draft, added to it
  double slope = 0.7;  // of the drafter's confidence, a logit too
  // Step sizes of learning: the first one of the bias, its least one, of places, of the slope.
  double bias_first = 0.52;
  double bias_step = 0.12;
  double place_step = 0.082;
  double slope_step = 0.0064;
  double bias_rounds = 2.2;  // after so many observations the bias' step size is half of its first
  // DepthPolicy: rounds over which tokens and time are averaged into the price of time.
  double price_rounds = 26;
  double price_prior_rounds = 12;  // for which the first price counts
  // DraftPause: rounds of the running mean of what drafting gave; rounds that what was known before
  // counts for; the first pause; rounds of the mean over all sequences.
  double gain_rounds = 62;
  double gain_prior_rounds = 6;
  double pause_rounds = 130;
  // A look at the drafter's confidence: rounds to the next one after it promised too little, how
  // that grows, and what must be promised, in tokens of a round.
  double look_rounds = 48;
  double look_growth = 1.25;
  double promise_least = 0.1;
  double experience_rounds = 78;
  double gain_start = 0.31;  // what drafting is believed to give at the very start
};

inline constexpr DraftConstants kDraftConstants{};

}  // namespace tensorfold
