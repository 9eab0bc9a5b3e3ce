// WorkerRank: what a worker does while a group stands: it syncs with the head, then takes plans,
// runs them and tells what became of its disk's records. It waits for the next plan in an exchange
// while the head says that work flows, else on the link. When the group ends it keeps weights and
// memory for the next one.
//
// Owner: the worker's engine thread; leave(), may_leave() and busy() are for any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/cluster/group.h"
#include "engine/group/plan_flow.h"
#include "engine/group/rank_report.h"
#include "engine/group/rank_reset.h"
#include "engine/group/seat_collective.h"
#include "engine/group/step_gate.h"
#include "engine/group/tier_news.h"

namespace tensorfold {

inline constexpr int64_t kWorkerIdleMs = 100;   // of one wait for a plan
inline constexpr int64_t kWorkerReadingMs = 1;  // the same while records are read from disk

struct WorkerRankParts {
  StepRunner& local;
  StepGate& gate;
  SeatCollective& seat;
  CacheTier* tier = nullptr;  // nullptr: no disk
  RankReport& report;
  LogSink& log;
};

class WorkerRank {
 public:
  WorkerRank(const WorkerRankParts& parts, const RankShape& shape, uint64_t self);

  // Until the group ends or `stop` is requested; gives why. `working` is called when the ranks are
  // in step.
  Status serve(Group& group, const StopFlag& stop, const std::function<void()>& working);

  // This rank is to be stopped (or not after all): the head ends its replies first.
  void leave(bool wanted) { leaving_.store(wanted, std::memory_order_release); }
  // The head has nothing left to do, or there is no group.
  bool may_leave() const { return may_leave_.load(std::memory_order_acquire); }
  int busy() const { return busy_.load(std::memory_order_relaxed); }  // open sequences
  uint64_t steps() const { return steps_.load(std::memory_order_relaxed); }

 private:
  Status turn(Group& group, const std::function<void()>& working);
  Status take_message(Group& group, const LinkArrival& arrival,
                      const std::function<void()>& working);
  Status sync(Group& group, const LinkArrival& arrival);
  Status catch_up(const LinkArrival& arrival);
  Status flow(Group& group);
  Status step(std::span<const std::byte> body);
  Status run(const StepOrder& order, const StepPlan& plan);
  Status tell(Group& group);
  void count_open(const StepPlan& plan);

  const WorkerRankParts parts_;
  const RankShape shape_;
  TierNews news_;
  PlanFlow flow_;
  bool flowing_ = false;  // the next plan comes by broadcast
  Hello hello_;
  std::set<SlotId> open_;
  bool synced_ = false;
  bool told_leaving_ = false;
  bool told_accepts_ = true;
  std::vector<SampledTokens> results_;
  std::atomic<bool> leaving_{false};
  std::atomic<bool> may_leave_{true};
  std::atomic<int> busy_{0};
  std::atomic<uint64_t> steps_{0};
};

}  // namespace tensorfold
