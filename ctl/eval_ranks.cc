// See eval_ranks.h.
#include "ctl/eval_ranks.h"

#include <cstring>
#include <thread>
#include <utility>

namespace tensorfold::ctl {
namespace {

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace

Status EvalRanks::on_all(const std::function<Status(int rank)>& work) const {
  const int n = static_cast<int>(collectives_.size());
  if (n == 1) return work(0);
  std::vector<Status> status(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] { status[static_cast<size_t>(rank)] = work(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  // A rank that failed by itself explains more than one that waited for it in vain.
  for (const bool lost_peer : {false, true}) {
    for (int rank = 0; rank < n; ++rank) {
      const Status& s = status[static_cast<size_t>(rank)];
      if (!s.ok() && (s.code() == StatusCode::kUnavailable) == lost_peer) {
        return s.with_context("rank " + std::to_string(rank));
      }
    }
  }
  return ok_status();
}

Result<std::unique_ptr<EvalRanks>> EvalRanks::load(const ModelOptions& options, int ranks) {
  std::unique_ptr<EvalRanks> out(new EvalRanks);
  if (ranks == 1) {
    out->collectives_.push_back(make_single_collective());
  } else {
    out->collectives_ = make_thread_collectives(ranks, kEvalCollectiveTimeoutMs);
  }
  out->models_.resize(static_cast<size_t>(ranks));
  TF_RETURN_IF_ERROR(out->on_all([&](int rank) -> Status {
    const size_t r = static_cast<size_t>(rank);
    TF_ASSIGN_OR_RETURN(out->models_[r], Model::load(options, *out->collectives_[r]));
    return ok_status();
  }));
  return out;
}

Status EvalRanks::forward(const StepPlan& plan, StepLogits& logits,
                          std::span<ForwardProbe* const> probes) {
  std::vector<StepLogits> all(models_.size());
  TF_RETURN_IF_ERROR(on_all([&](int rank) {
    const size_t r = static_cast<size_t>(rank);
    ForwardProbe* probe = r < probes.size() ? probes[r] : nullptr;
    return models_[r]->forward(plan, {}, all[r], probe);
  }));
  for (size_t r = 1; r < all.size(); ++r) {
    if (!same_bits(all[0].values, all[r].values)) {
      return internal_error("logits of rank " + std::to_string(r) + " differ from rank 0's");
    }
  }
  logits = std::move(all[0]);
  return ok_status();
}

Status EvalRanks::draft(const DraftRequest& request, DraftResult& result,
                        std::span<ForwardProbe* const> probes) {
  std::vector<std::vector<DraftResult>> all(models_.size());
  TF_RETURN_IF_ERROR(on_all([&](int rank) {
    const size_t r = static_cast<size_t>(rank);
    ForwardProbe* probe = r < probes.size() ? probes[r] : nullptr;
    return models_[r]->draft(std::span(&request, 1), all[r], probe);
  }));
  if (all[0].empty()) return unsupported("the model has no drafter, but the file holds drafts");
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r].empty() || all[r][0].tokens != all[0][0].tokens ||
        !same_bits(all[r][0].confidence, all[0][0].confidence)) {
      return internal_error("drafts of rank " + std::to_string(r) + " differ from rank 0's");
    }
  }
  result = std::move(all[0][0]);
  return ok_status();
}

Status EvalRanks::accept(SlotId slot, int64_t length) {
  return on_all([&](int rank) { return models_[static_cast<size_t>(rank)]->accept(slot, length); });
}

}  // namespace tensorfold::ctl
