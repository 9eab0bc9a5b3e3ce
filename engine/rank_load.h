// Loading one rank of a model: sizes from options and config.json, then its slice of the weights,
// its disk cache and its executor. The same for one rank, a head and a worker. Runs in the engine
// thread; nothing here knows of requests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/cache/cache_layout.h"
#include "engine/cache/prefix_index.h"
#include "engine/cache/spill/spill_tier.h"
#include "engine/engine.h"
#include "engine/group/seat_collective.h"
#include "engine/group/step_gate.h"
#include "engine/memory_plan.h"
#include "engine/model/config.h"
#include "engine/model/model.h"
#include "engine/sched/planner.h"
#include "engine/step_executor.h"
#include "kernels/device.h"

namespace tensorfold {

// What is decided before weights are read.
struct RankSizes {
  std::shared_ptr<Device> device;
  ModelConfig config;
  int64_t context = 0;  // tokens of one sequence
  int64_t pool_blocks = 0;
  PlannerOptions planner;
  CacheLayout layout;
  PrefixOptions prefix;
};
Result<RankSizes> size_rank(const EngineOptions& options, LogSink& log);
// The same with `device` left out.
Result<RankSizes> size_rank_without_device(const EngineOptions& options);
// What the rank takes of memory, from the headers of its weights.
Result<MemoryPlan> plan_rank(const EngineOptions& options, const RankSizes& sizes);

// A rank's model and what it stands on; the members outlive those below them.
struct LoadedRank {
  std::unique_ptr<Collective> collective;  // one rank; or `seat`
  SeatCollective* seat = nullptr;          // several ranks: where the group's collective goes
  StepGate gate;                           // several ranks
  std::unique_ptr<SpillTier> tier;         // null: no disk
  std::unique_ptr<Model> model;
  std::unique_ptr<StepExecutor> executor;
  int64_t parameters = 0;
};
Result<std::shared_ptr<LoadedRank>> load_rank(const EngineOptions& options, const RankSizes& sizes,
                                              const std::function<void(std::string)>& progress,
                                              const Clock& clock, LogSink& log);

}  // namespace tensorfold
