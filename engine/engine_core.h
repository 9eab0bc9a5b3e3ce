// EngineCore: the Engine that the daemon holds. The front is called from any thread; behind it are
// the prompt workers and the engine thread, which loads the model and then turns its loop.
//
// Owners: the engine thread owns model, runner, planner and running requests. Front and engine
// thread share the ticket book, the command queue and the stats board, nothing else.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "engine/base/bounded_queue.h"
#include "engine/cluster/stop_flag.h"
#include "engine/constraint_service.h"
#include "engine/draft/depth_policy.h"
#include "engine/engine.h"
#include "engine/engine_loop.h"
#include "engine/stats_board.h"
#include "engine/submit_pipeline.h"

namespace tensorfold {

// Everything that loading makes. `keep` owns what the runner points at (models, collectives,
// threads of other ranks) and is destroyed after it.
struct EngineParts {
  std::shared_ptr<void> keep;
  std::unique_ptr<StepRunner> runner;
  std::shared_ptr<const TextCodec> text;
  std::unique_ptr<DepthPolicy> depth_policy;
  std::shared_ptr<ConstraintService> constraints;  // null: replies of a given form are refused
  LoopOptions loop;
  std::vector<TokenId> canary;  // its prompt; empty: none is asked
  Capacity capacity;
  ModelInfo info;
  int64_t weight_bytes = 0;
  int64_t cache_bytes = 0;
  // Several ranks: what is left to do before the loop may turn (they come together, row costs are
  // measured). `waits_for` shows in state_detail; it says false when the engine is being stopped.
  using WaitsFor = std::function<bool(std::string)>;
  std::function<Status(EngineParts& parts, StatsBoard& board, const WaitsFor& waits_for)> begin;
  std::shared_ptr<StopFlag> stop;  // requested when the engine is being stopped; may be null
};

// Runs in the engine thread. `progress` shows in EngineStats::state_detail.
using EngineLoader = std::function<Result<EngineParts>(
    const EngineOptions& options, const std::function<void(std::string)>& progress)>;

// Refuses options that are out of bounds; otherwise starts at once.
Result<std::unique_ptr<Engine>> start_engine(EngineOptions options, const Clock& clock,
                                             LogSink& log, EngineLoader loader);

}  // namespace tensorfold
