// A head and its workers in one process over FakeGroup: GroupRunner and WorkerRank are the real
// ones; what a rank computes is scripted, so that its memory can be compared with the other ranks'
// and with what the plans say.
#pragma once

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/group/group_runner.h"
#include "engine/group/worker_rank.h"
#include "tests/engine/group/fake_group.h"

namespace tensorfold::test {

inline constexpr int kSlots = 4;
inline constexpr int64_t kSnapshots = 16;
inline constexpr int64_t kFakeSyncMs = 10'000;  // of the test's clock

inline uint64_t mix(uint64_t a, uint64_t b) {
  a ^= b + 0x9E3779B97F4A7C15U + (a << 6U) + (a >> 2U);
  return a * 0xBF58476D1CE4E5B9U ^ a >> 29U;
}

// What a rank remembers: a number that stands for all tokens of a sequence.
struct Memory {
  std::map<SlotId, uint64_t> slots;
  std::map<int64_t, uint64_t> snapshots;
  bool operator==(const Memory&) const = default;

  Status apply(const StepPlan& plan) {
    for (const CacheCommand& c : plan.commands) {
      const bool open = slots.contains(c.slot);
      switch (c.kind) {
        case CacheCommand::Kind::kOpenSlot:
          if (open) return internal_error("opened twice");
          slots[c.slot] = 1;
          break;
        case CacheCommand::Kind::kCloseSlot:
          if (!open) return internal_error("closed but not open");
          slots.erase(c.slot);
          break;
        case CacheCommand::Kind::kSnapshot:
          if (!open) return internal_error("saved but not open");
          snapshots[c.value] = slots[c.slot];
          break;
        case CacheCommand::Kind::kRestore:
          if (!open || !snapshots.contains(c.value)) return internal_error("no such snapshot");
          slots[c.slot] = snapshots[c.value];
          break;
        case CacheCommand::Kind::kDropSnapshot:
          if (snapshots.erase(c.value) == 0) return internal_error("no such snapshot");
          break;
        default:
          break;
      }
    }
    return ok_status();
  }
  static int32_t next(uint64_t state, int64_t position) {
    return static_cast<int32_t>(mix(state, static_cast<uint64_t>(position)) % 1000U);
  }
};

// The rank's executor: commands, agreement, an exchange of the model, tokens, agreement.
class FakeExecutor final : public StepRunner {
 public:
  FakeExecutor(int rank, int world_size) : seat(rank, world_size) {}

  Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
    struct Done {
      ~Done() { to.store(step, std::memory_order_release); }
      std::atomic<uint64_t>& to;
      uint64_t step;
    } const at_end{done, plan.step};
    results.clear();
    Status status = memory.apply(plan);
    status = gate.before(plan, status);
    TF_RETURN_IF_ERROR(status);
    if (throws.exchange(false)) throw std::runtime_error("out of memory");
    if (plan.samples.empty()) return ok_status();
    std::vector<uint64_t> all(static_cast<size_t>(seat.world_size()));
    for (const SampleSpec& s : plan.samples) {
      const uint64_t mine = memory.slots[s.slot];
      TF_RETURN_IF_ERROR(seat.all_gather(std::as_bytes(std::span(&mine, 1)),
                                         std::as_writable_bytes(std::span(all))));
      SampledTokens r;
      r.slot = s.slot;
      r.accepted.push_back(Memory::next(mine, s.position));
      if (fails.load() == s.slot) r.status = internal_error("no number in row");
      results.push_back(std::move(r));
    }
    TF_RETURN_IF_ERROR(gate.after(plan, results));
    for (const SampledTokens& r : results)
      for (const int32_t token : r.accepted)
        memory.slots[r.slot] = mix(memory.slots[r.slot], static_cast<uint64_t>(token));
    return ok_status();
  }

  Memory memory;
  std::atomic<uint64_t> done{0};  // the last plan's step
  StepGate gate;
  SeatCollective seat;
  std::atomic<SlotId> fails{-1};    // its row fails here
  std::atomic<bool> throws{false};  // the next step does
};

// A process: what it remembers dies with it.
struct FakeProcess {
  FakeProcess(int rank, int world_size, const Clock& clock)
      : executor(rank, world_size), report({}, rank, nullptr, clock) {}
  FakeExecutor executor;
  RankReport report;
};

class FakeWorker {
 public:
  FakeWorker(FakeMeeting& meets, int rank, int world_size, const Clock& clock)
      : meeting_(meets), rank_(rank), world_size_(world_size), clock_(clock) {
    start();
  }
  ~FakeWorker() { end(); }

  void restart() {
    end();
    start();
  }
  FakeExecutor& executor() { return process_->executor; }
  WorkerRank& worker() { return *worker_; }

 private:
  void start() {
    static std::atomic<uint64_t> selves{1000};
    process_ = std::make_unique<FakeProcess>(rank_, world_size_, clock_);
    worker_ = std::make_unique<WorkerRank>(
        WorkerRankParts{process_->executor, process_->executor.gate, process_->executor.seat,
                        nullptr, process_->report, null_log()},
        RankShape{kSlots, kSnapshots}, ++selves);
    stop_ = std::make_unique<StopFlag>();
    thread_ = std::thread([this] {
      while (!stop_->requested()) {
        auto group = meeting_.form(rank_, *stop_);
        if (group.ok()) (void)worker_->serve(**group, *stop_, [] {});
      }
    });
  }
  void end() {
    stop_->request();
    if (const auto link = meeting_.link())
      link->fail(unavailable("rank " + std::to_string(rank_) + " is gone", "peer_closed"));
    thread_.join();
  }

  FakeMeeting& meeting_;
  const int rank_, world_size_;
  const Clock& clock_;
  std::unique_ptr<FakeProcess> process_;
  std::unique_ptr<WorkerRank> worker_;
  std::unique_ptr<StopFlag> stop_;
  std::thread thread_;
};

class FakeRanks {
 public:
  explicit FakeRanks(int world_size) : meeting(world_size, clock), world_size_(world_size) {
    for (int r = 1; r < world_size; ++r)
      workers.push_back(std::make_unique<FakeWorker>(meeting, r, world_size, clock));
    start_head();
  }
  ~FakeRanks() {
    end_head();
    workers.clear();
  }

  void restart_head() {
    end_head();
    start_head();
  }
  // What the engine loop does while the ranks are apart. The plan closes what is open.
  GroupLife::Regained regain(const StepPlan& closing = {}) {
    for (;;) {
      std::string text;
      const auto regained = runner->regain(text);
      if (!regained) continue;
      if (runner->resume(closing, *regained).ok()) return *regained;
    }
  }
  // Workers end a step a little after the head: then their memory may be looked at.
  void settle(uint64_t step) {
    for (auto& w : workers)
      while (w->executor().done.load(std::memory_order_acquire) != step)
        std::this_thread::sleep_for(kLookMs);
  }

  ManualClock clock;
  FakeMeeting meeting;
  std::unique_ptr<FakeProcess> head;
  std::vector<std::unique_ptr<FakeWorker>> workers;
  std::unique_ptr<GroupRunner> runner;

 private:
  void start_head() {
    static std::atomic<uint64_t> selves{1};
    head = std::make_unique<FakeProcess>(0, world_size_, clock);
    stop_ = std::make_unique<StopFlag>();
    forming_ = std::make_unique<Forming>(
        [this](const StopFlag& stop, const auto&) { return meeting.form(0, stop); }, *stop_,
        null_log());
    runner = std::make_unique<GroupRunner>(
        GroupRunnerParts{head->executor, head->executor.gate, head->executor.seat, *forming_,
                         nullptr, head->report, clock, null_log()},
        RankShape{kSlots, kSnapshots}, world_size_, ++selves, kFakeSyncMs);
  }
  void end_head() {
    runner.reset();
    forming_.reset();
  }

  const int world_size_;
  std::unique_ptr<StopFlag> stop_;
  std::unique_ptr<Forming> forming_;
};

}  // namespace tensorfold::test
