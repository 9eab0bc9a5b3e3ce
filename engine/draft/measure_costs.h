// Measures what steps cost, on the real model with real routing: a few sequences reply to ordinary
// questions while the number of sequences and of drafted rows goes through a small grid. Run by the
// engine thread before the engine is ready; leaves every slot closed.
//
// The least of a few repetitions counts: other load on the machine only ever adds. Where the two
// least differ much, the machine was busy: such a table serves until the next start, which measures
// again. A step's time covers the forward pass, verification and, when asked for, the drafter's
// pass behind it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/status.h"
#include "engine/draft/cost_table.h"
#include "engine/step_executor.h"

namespace tensorfold {

// Each group of the grid has its share of this; behind it, no third repetition begins.
inline constexpr int64_t kMeasureCostsUs = 900'000;
inline constexpr int64_t kMeasureCostsHardUs = 2'500'000;  // behind it, no group and no second one
inline constexpr int kMeasureRepetitions = 8;              // of each step of the grid, at most
inline constexpr int kMeasurePromptTokens = 48;            // of each sequence, at most
inline constexpr double kMeasureSteadyRatio = 1.3;  // of the two least times of a steady machine

struct MeasureLimits {
  int slots = 1;
  int draft_rows = 5;
  int64_t pool_blocks = 1;
  int64_t positions = kBlockPositions;  // of one sequence
  int prefill_rows = 2048;
};

struct MeasuredCosts {
  CostTable table;
  bool steady = false;  // worth keeping
};

// `prompts`: token ids of questions, taken in turn; none is empty. Not ok: the model failed.
Result<MeasuredCosts> measure_costs(StepRunner& runner, const MeasureLimits& limits,
                                    std::span<const std::vector<int32_t>> prompts,
                                    const Clock& clock);

}  // namespace tensorfold
