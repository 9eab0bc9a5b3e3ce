// See the header.
#include "engine/planned_memory.h"

#include "engine/memory_plan.h"
#include "engine/rank_load.h"

namespace tensorfold {

Result<PlannedMemory> planned_memory(const EngineOptions& options, bool shared) {
  TF_ASSIGN_OR_RETURN(const RankSizes sizes, size_rank_without_device(options));
  PlannedMemory out;
  EngineOptions of_rank = options;
  const int ranks = options.cluster.world_size;
  for (int rank = 0; rank < ranks; ++rank) {
    of_rank.cluster.rank = rank;
    TF_ASSIGN_OR_RETURN(const MemoryPlan plan, plan_rank(of_rank, sizes));
    const std::string whose = ranks > 1 ? "rank " + std::to_string(rank) + ": " : "";
    out.lines.push_back(whose + plan_text(plan));
    if (rank != options.cluster.rank || !shared) continue;
    if (const auto host = host_memory()) out.fits = check_plan(plan, *host);
  }
  return out;
}

}  // namespace tensorfold
