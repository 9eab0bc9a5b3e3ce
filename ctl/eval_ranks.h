// EvalRanks: the ranks of one model as threads of this process, driven step by step from the
// verb's thread. Every rank runs the same plan; rank 0's results are the ones that are returned,
// and the others' logits and drafts must equal them bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/cluster/collective.h"
#include "engine/model/model.h"

namespace tensorfold::ctl {

inline constexpr int kEvalCollectiveTimeoutMs = 120'000;  // a rank waits this long for its peers

class EvalRanks {
 public:
  static Result<std::unique_ptr<EvalRanks>> load(const ModelOptions& options, int ranks);

  int world_size() const { return static_cast<int>(models_.size()); }
  const ModelConfig& config() const { return models_[0]->config(); }
  Model& rank0() { return *models_[0]; }

  // probes: none, one (rank 0's) or one per rank.
  Status forward(const StepPlan& plan, StepLogits& logits,
                 std::span<ForwardProbe* const> probes = {});
  Status draft(const DraftRequest& request, DraftResult& result,
               std::span<ForwardProbe* const> probes = {});
  Status accept(SlotId slot, int64_t length);

 private:
  EvalRanks() = default;
  // Runs `work` for every rank, each on its own thread; the first failure in rank order.
  Status on_all(const std::function<Status(int rank)>& work) const;

  std::vector<std::unique_ptr<Collective>> collectives_;
  std::vector<std::unique_ptr<Model>> models_;
};

}  // namespace tensorfold::ctl
