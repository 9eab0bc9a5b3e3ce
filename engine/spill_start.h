// The disk behind the prefix cache, as an engine's options ask for it: where, how much, and whose
// bits (engine/cache/spill/spill_identity.h). Runs in the engine thread, at start.
#pragma once

#include <memory>
#include <string>

#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/cache/cache_layout.h"
#include "engine/cache/spill/spill_identity.h"
#include "engine/cache/spill/spill_tier.h"
#include "engine/engine.h"

namespace tensorfold {

inline constexpr int64_t kSpillIndexWaitUs = 5'000'000;  // at start; then it goes on behind

// Sizes and formats of everything that is written to disk.
std::string cache_formats(const CacheLayout& layout);

struct SpillStart {
  const EngineOptions& options;
  const CacheLayout& layout;
  std::string fingerprint;  // of the model
  std::string device;       // "cpu", "sm_121"
  int world_size = 1;
  int rank = 0;
};

// nullptr: no disk is wanted. What can't run is off and says so.
std::unique_ptr<SpillTier> start_spill(const SpillStart& start, const Clock& clock, LogSink& log);

}  // namespace tensorfold
