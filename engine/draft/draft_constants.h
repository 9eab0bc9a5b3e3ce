// The fitted constants of drafting, in one place. They were fitted by the simulator:
//
//   depth_sim --fit --traces tests/data/bench/draft_traces.txt
//     with --costs tests/data/bench/row_costs_cpu.json
//
// on its fitting seeds and replies; docs/speculation.md has what they reach on the judging ones.
#pragma once

#include <array>

namespace tensorfold {

struct DraftConstants {
  // Acceptance: what is believed of any drafter before an outcome is seen, as a mean and a spread
  // (standard deviation), in logits: by place in the draft, and of the drafter's confidence.
  std::array<double, 5> place = {0.082, 0.69, -0.2, 0.54, 0.21};
  double place_spread = 0.44;
  double slope = 0.45;
  double slope_spread = 0.15;
  // How far one sequence lies from the others, and how far it may move in a round; how far the
  // drafter itself may.
  double bias_spread = 0.5;
  double bias_drift = 0.36;
  double place_drift = 0.014;
  double slope_drift = 0.0052;
  // DepthPolicy: rounds over which tokens and time are averaged into the price of time.
  double price_rounds = 27;
  double price_prior_rounds = 2.7;  // for which the first price counts
  // DraftPause: runs of the drafter that may be lost before a pause; rounds that what others were
  // promised counts for; the looks' share of the time; when the first look comes, as a share of the
  // rounds between two later ones.
  double lost_runs = 2.5;
  double promise_prior_rounds = 2.1;
  double look_share = 0.0076;
  double first_look = 0.14;
  // How far below 0, in tokens of a round, a reply's promise may lie for it to begin with drafts.
  double promise_least = 0.15;
  double experience_rounds = 21;  // of the mean over all sequences
  double promise_start = 0.19;    // what drafting is believed to give at the very start
};

inline constexpr DraftConstants kDraftConstants{};

}  // namespace tensorfold
