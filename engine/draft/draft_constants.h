// The fitted constants of drafting, in one place. They were fitted by the simulator:
//
//   depth_sim --fit --traces tests/data/bench/draft_traces.txt
//     with --costs tests/data/bench/row_costs_cpu.json
//
// on its fitting seeds, and lost_runs rounded up (2.3); docs/speculation.md has what they reach on
// the judging seeds.
#pragma once

#include <array>

namespace tensorfold {

struct DraftConstants {
  // Acceptance: what is believed of any drafter before an outcome is seen, as a mean and a spread
  // (standard deviation), in logits: by place in the draft, and of the drafter's confidence.
  std::array<double, 5> place = {0.11, 1, -0.33, 0.54, 0.42};
  double place_spread = 0.38;
  double slope = 0.45;
  double slope_spread = 0.15;
  // How far one sequence lies from the others, and how far it may move in a round; how far the
  // drafter itself may.
  double bias_spread = 0.5;
  double bias_drift = 0.36;
  double place_drift = 0.014;
  double slope_drift = 0.0028;
  // DepthPolicy: rounds over which tokens and time are averaged into the price of time.
  double price_rounds = 25;
  double price_prior_rounds = 3.3;  // for which the first price counts
  // DraftPause: runs of the drafter that may be lost before a pause; rounds that what others were
  // promised counts for; the looks' share of the time.
  double lost_runs = 3;
  double promise_prior_rounds = 3;
  double look_share = 0.008;
  // How far below 0, in tokens of a round, a reply's promise may lie for it to begin with drafts.
  double promise_least = 0.091;
  double experience_rounds = 21;  // of the mean over all sequences
  double promise_start = 0.19;    // what drafting is believed to give at the very start
};

inline constexpr DraftConstants kDraftConstants{};

}  // namespace tensorfold
