// What the disk behind the cache has done, as the engine publishes it.
#pragma once

#include "engine/cache/spill/spilled_index.h"
#include "engine/engine.h"

namespace tensorfold {

// `tier` nullptr: all zero.
SpillFigures spill_figures(const CacheTier* tier, const SpilledStats& index);

}  // namespace tensorfold
