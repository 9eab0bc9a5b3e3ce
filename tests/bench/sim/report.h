// The simulator's figures: every kind of text at every table of costs.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bench/sim/depth_run.h"

namespace tensorfold::sim {

struct Costs {
  std::string name;
  CostTable table;
};
// A stored table (engine/draft/cost_store.h), whatever it was measured on.
Result<Costs> read_costs(const std::string& path);

inline constexpr int kReplyTokens = 512;  // of a simulated reply; the next knows nothing of it
inline constexpr int kTraceTokens = 16 * 1024;  // of a generated trace
inline constexpr int kPieceTokens = 192;        // of one kind in the mixed trace
inline constexpr int kCollapseTokens = 1024;    // for which drafts are right, then for which wrong
inline constexpr int kBeginnings = 6;  // of a recorded trace, which is short: each knows nothing
inline constexpr uint64_t kFitSeed = 100;     // the constants were fitted on traces of this seed
inline constexpr uint64_t kJudgeSeed = 9000;  // and are judged on these

// Those of the recorded traces whose name begins with "fit-" or "judge-".
std::vector<Trace> part_of(std::span<const Trace> recorded, std::string_view prefix);

// A kind of text at one table of costs, with one stream of it or several.
struct Scenario {
  std::string text, costs;
  std::vector<Trace> traces;  // one per stream
  CostTable table;
  BestFixed fixed;
  double oracle = 0;  // tokens per microsecond; 0: several streams
};

// Generated kinds, their mixture and a drafter that fails at times, then recorded traces and
// theirs, one stream each; then the mixture at four streams.
std::vector<Scenario> make_scenarios(std::span<const Trace> recorded, std::span<const Costs> costs,
                                     uint64_t seed, int trace_tokens);
// A recorded trace from several beginnings, all together.
RunResult run_scenario(const Scenario& scenario, const DraftConstants& constants);

void print_report(std::span<const Trace> recorded, std::span<const Costs> costs,
                  const DraftConstants& constants);

}  // namespace tensorfold::sim
