// Replays traces through a depth policy at the costs of a table. The policy, what it learns and
// when it pauses are the engine's own code (engine/draft); only the model is a trace.
#pragma once

#include <span>
#include <vector>

#include "engine/draft/cost_table.h"
#include "engine/draft/draft_constants.h"
#include "tests/bench/sim/traces.h"

namespace tensorfold::sim {

struct RunResult {
  int64_t tokens = 0;
  int64_t rounds = 0;  // of all sequences together
  int64_t drafted = 0;
  int64_t accepted = 0;
  int64_t pauses = 0;
  double time_us = 0;
  double rate() const { return static_cast<double>(tokens) / time_us; }  // tokens per microsecond
};

// All traces at once, one sequence each, until the first ends. A reply starts as the engine starts
// it, knowing nothing, with drafts behind its prompt: where the trace says so, else every `reply`
// tokens.
RunResult run_policy(std::span<const Trace> traces, const CostTable& costs,
                     const DraftConstants& constants, int reply);
// Depth 0 runs no drafter.
RunResult run_fixed(std::span<const Trace> traces, const CostTable& costs, int depth, int reply);
// Knows which drafts are right, one sequence: the best that any choice of depths can do.
RunResult run_oracle(const Trace& trace, const CostTable& costs, int reply);

struct BestFixed {
  int depth = 0;
  RunResult result;
};
BestFixed best_fixed(std::span<const Trace> traces, const CostTable& costs, int reply);

// GB10, one rank of two, at 247 GB/s: from the bytes of docs/speculation.md's cost table.
CostTable gb10_costs();

}  // namespace tensorfold::sim
