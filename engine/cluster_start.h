// How a real engine becomes a rank of several: what ranks must agree on, the link's options, and
// the head's runner with its first coming together. Called by the engine thread while it loads.
#pragma once

#include <memory>

#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/cluster/group.h"
#include "engine/cluster/transport.h"
#include "engine/drafting_start.h"
#include "engine/engine_core.h"
#include "engine/rank_load.h"

namespace tensorfold {

// Values of options and model that must be equal on all ranks.
LinkFields cluster_fingerprint(const EngineOptions& options, const RankSizes& sizes,
                               const Model& model);
Result<GroupOptions> group_options(const EngineOptions& options, LinkFields fingerprint);
uint64_t random_process_id();  // not 0

// What an engine of several ranks owns for its life, besides its rank.
struct ClusterLink {
  std::shared_ptr<Device> device;
  std::shared_ptr<LoadedRank> rank;
  std::shared_ptr<StopFlag> stop = std::make_shared<StopFlag>();
  std::unique_ptr<Transport> transport;
  std::unique_ptr<GroupFormer> former;
};
// Binds the port, where this rank listens.
Result<std::shared_ptr<ClusterLink>> open_link(const EngineOptions& options, const RankSizes& sizes,
                                               std::shared_ptr<LoadedRank> rank, const Clock& clock,
                                               LogSink& log);

struct HeadStart {
  const EngineOptions& options;
  const RankSizes& sizes;
  std::shared_ptr<LoadedRank> rank;
  DraftingStart drafting;
};
// Fills in runner, group, tier, begin, stop and keep of `parts`.
Status start_head(const HeadStart& start, const Clock& clock, LogSink& log, EngineParts& parts);

}  // namespace tensorfold
