// GroupRunner: the head's StepRunner where several ranks stand behind it. A plan goes to the
// workers (over the link, and by broadcast while work flows: PlanFlow) and is run here; the ranks
// meet in the model's exchanges, and nothing comes back: results are equal on every rank (StepGate
// makes sure before anything is built on them).
//
// When the group breaks, the runner lets go of it and forms the next one (Forming). What this rank
// holds stays: if all ranks are the same processes as before and each has carried out the last plan
// (one that lacks it is given its commands), memory is kept; else every rank forgets its sequences
// and snapshots, and only what all have on disk is found again. Weights are never loaded twice.
//
// Owner: the head's engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/group/forming.h"
#include "engine/group/group_life.h"
#include "engine/group/group_tier.h"
#include "engine/group/plan_flow.h"
#include "engine/group/rank_report.h"
#include "engine/group/rank_reset.h"
#include "engine/group/seat_collective.h"
#include "engine/group/step_gate.h"

namespace tensorfold {

inline constexpr int64_t kRegainWaitUs = 50'000;  // of one regain(), for a group
inline constexpr int64_t kSyncMs = 10'000;        // for one answer of a worker while it syncs

struct GroupRunnerParts {
  StepRunner& local;  // this rank's executor
  StepGate& gate;     // its agreement
  SeatCollective& seat;
  Forming& forming;
  GroupTier* tier = nullptr;  // nullptr: no disk
  RankReport& report;
  const Clock& clock;
  LogSink& log;
};

class GroupRunner final : public StepRunner, public GroupLife {
 public:
  // `self`: random, of this process. sync_ms is divided like the link's timers.
  GroupRunner(const GroupRunnerParts& parts, const RankShape& shape, int world_size, uint64_t self,
              int64_t sync_ms = kSyncMs);
  ~GroupRunner() override;

  Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override;

  Status check() override;
  std::optional<Regained> regain(std::string& waits_for) override;
  Status resume(const StepPlan& closing, const Regained& regained) override;
  std::string leaving() const override;
  void idle() override;
  void resting() override;

 private:
  struct Worker {
    uint64_t self = 0;  // 0: not known yet
    bool leaving = false;
    bool may_leave = false;
  };
  Status run_here(const StepPlan& plan, std::vector<SampledTokens>& results);
  void run_alone(const StepPlan& plan);
  Status send_plan(std::span<const std::byte> body, bool flows);
  Status let_go(const Status& why);
  Status take_messages(int rank);
  Status take_message(int rank, const LinkArrival& arrival);
  Status sync(Group& group, bool& kept);
  Result<std::vector<std::byte>> expect_message(Group& group, int rank, GroupMessage kind);
  Status take_records(Group& group, int rank);

  const GroupRunnerParts parts_;
  const RankShape shape_;
  const uint64_t self_;
  const int64_t sync_ms_;
  std::vector<Worker> workers_;  // ranks 1..
  std::unique_ptr<Group> group_;
  PlanFlow flow_;
  bool flowing_ = false;         // the workers wait for a broadcast
  uint64_t sequence_ = 0;        // of the last plan
  std::vector<std::byte> last_;  // its message, for a worker that lacks its commands
  bool clean_ = true;            // this rank carried all of them out
};

}  // namespace tensorfold
