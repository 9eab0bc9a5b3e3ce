// How a real engine comes to its depth policy: measured row costs, kept in the state directory.
// Called by the engine thread while it loads.
#pragma once

#include <memory>

#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/draft/depth_policy.h"
#include "engine/draft/measure_costs.h"
#include "engine/engine.h"
#include "engine/step_executor.h"
#include "engine/text_codec.h"

namespace tensorfold {

struct DraftingStart {
  const EngineOptions& options;
  MeasureLimits limits;     // draft_rows 0: the model drafts nothing
  std::string fingerprint;  // of the model
  std::string device;       // what the model runs on
  int vocab = 0;
};

// Runs a few steps when no stored table fits. Not ok: the model failed at them.
Result<std::unique_ptr<DepthPolicy>> make_depth_policy(const DraftingStart& start,
                                                       StepRunner& runner, const TextCodec& text,
                                                       const Clock& clock, LogSink& log);

}  // namespace tensorfold
