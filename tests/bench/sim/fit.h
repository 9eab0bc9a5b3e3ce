// Fits the constants of drafting to the fitting seeds: a random search around the best so far.
#pragma once

#include "tests/bench/sim/report.h"

namespace tensorfold::sim {

DraftConstants fit_constants(std::span<const Trace> recorded, std::span<const Costs> costs);
// As engine/draft/draft_constants.h has them.
void print_constants(const DraftConstants& constants);

}  // namespace tensorfold::sim
