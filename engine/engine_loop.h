// EngineLoop: what the engine thread does. One turn: let go of what was cancelled or is late,
// admit, plan, run, commit, publish. Owned by the engine thread alone; sinks are called from it.
//
// The planner decides what runs, the runner runs it, ReplyState decides where replies end; this
// file is the control flow between them and the bookkeeping of requests.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/cache/prefix_index.h"
#include "engine/cache/spill/spilled_index.h"
#include "engine/canary.h"
#include "engine/draft/depth_policy.h"
#include "engine/draft/draft_pause_log.h"
#include "engine/draft/sequence_drafting.h"
#include "engine/group/group_life.h"
#include "engine/health_watch.h"
#include "engine/mask_desk.h"
#include "engine/reply_state.h"
#include "engine/sched/planner.h"
#include "engine/stats_board.h"
#include "engine/step_executor.h"
#include "engine/submit_pipeline.h"

namespace tensorfold {

struct LoopParts {
  StepRunner& runner;
  const TextCodec& text;
  DepthPolicy& depth_policy;
  const Clock& clock;
  LogSink& log;
  StatsBoard& board;
  HealthWatch* health = nullptr;  // nullptr: nobody watches
};

struct LoopOptions {
  PlannerOptions planner;
  PrefixOptions prefix;
  CacheTier* tier = nullptr;   // the disk behind the cache; nullptr: none
  GroupLife* group = nullptr;  // the ranks behind the runner; nullptr: one
  int vocab = 0;
  int64_t queue_deadline_us = 0;
  MaskOptions masks = {};
};

class EngineLoop {
 public:
  EngineLoop(const LoopOptions& options, const LoopParts& parts);

  void take(Submission&& submission);
  // One turn. False: there was nothing to run.
  bool turn();
  void flush_cache(bool disk) { planner_.flush_cache(disk); }
  // Ends every request. Afterwards, or once failed(), take() refuses with `status`.
  void end_all(const Status& status);
  bool failed() const { return !broken_.ok(); }
  bool asking_canary() const { return canary_ != nullptr; }
  bool apart() const { return !lost_.ok(); }          // a rank is lost, its return is waited for
  bool reading() const { return !reading_.empty(); }  // prefixes, from disk
  // For the stop, behind end_all(): writes what the disk has not yet, at most `wait_us`.
  void finish_spilling(int64_t wait_us);
  bool resting() const { return planner_.waiting() == 0 && !planner_.has_work(); }
  bool idle() const { return resting() && reading_.empty(); }

 private:
  // A request that has been accepted.
  struct Run {
    Run(Submission&& s, const TextCodec& text);
    Submission submission;
    ReplyState reply;
    SlotId slot = -1;  // -1: set aside, it waits for another
    SequenceDrafting drafting;
    int32_t drafts_ready = 0;  // of last.drafts, when the step was planned
    SampledTokens last;        // its drafts and their confidence, mirrored from the last step
    MaskCursor form;           // where the reply stands in its form
    int cached_tokens = 0;
    int rounds = 0;
    int filled_told = 0;  // prompt tokens that on_progress has told of
    int scored_told = 0;  // and on_prompt_logprobs
    int64_t admitted_us = 0;
    int64_t first_token_us = 0;
  };

  void let_go();
  void queue_read();
  void unqueue(uint64_t request);
  void admit();
  void begin(Run& run, const Admitted& admitted);
  void step();
  std::vector<DraftChoice> choose_drafts();
  int32_t drafts_usable(Run& run);
  // engine_loop_masks.cc
  bool ready_masks(std::vector<DraftChoice>& choices);
  bool ready_masks(Run& run, DraftChoice& choice, bool generating);
  void fill_masks(StepPlan& plan) const;
  void commit(const StepPlan& plan, const std::vector<SampledTokens>& results, int64_t step_us);
  void commit_fill(Run& run, const Slice& slice);
  static void publish_scores(Run& run, const Slice& slice, const SampledTokens* result);
  void commit_sample(Run& run, const SampleSpec& sample, const SampledTokens& result);
  static void note_forced(Run& run, TokenId id);
  void note_loop(const Run& run, bool ended);
  void fail_sample(Run& run, const SampledTokens& result);
  void learn_drafting(Run& run, const SampleSpec& sample, const SampledTokens& result);
  void publish(Run& run, std::span<const TokenId> tokens, const SampledTokens& result);
  void finish(Run& run, const Status& status, FinishReason reason);
  void count_step(const StepPlan& plan, int64_t tokens, int64_t step_us);
  void publish_gauges();
  void publish_cache();
  void fail(const Status& status);
  void break_off(const StepPlan& plan, const Status& status);
  // engine_loop_group.cc
  bool together();
  void lose(const Status& why);
  void come_back(const GroupLife::Regained& regained);
  void watch_leaving();
  void end_requests(const Status& status);
  SequenceSpec sequence_spec(const Submission& submission) const;
  // engine_loop_health.cc
  static bool internal(const Run& run);
  bool no_drafts() const { return parts_.health != nullptr && parts_.health->alarm(); }
  void ask_canary();
  void hear_canary();
  void watch_health();
  void leave_for_new_start();
  void publish_health();

  const LoopOptions options_;
  const LoopParts parts_;
  PrefixIndex cache_;
  SpilledIndex spilled_;
  Planner planner_;
  std::deque<Submission> waiting_;     // in the planner's queue or reading_, in order of arrival
  std::vector<SequenceSpec> reading_;  // a part of their prompts is being read from disk
  std::array<std::unique_ptr<Run>, kSequencesMax> running_;  // by slot
  std::vector<std::unique_ptr<Run>> set_aside_;              // wait in the planner's queue, too
  std::vector<SampledTokens> results_;
  MaskDesk masks_;
  DraftPauseLog pause_log_;
  TicketBook canary_book_;
  std::shared_ptr<CanarySink> canary_;  // while it is asked
  Status broken_;
  Status lost_;        // why requests are refused while a rank is lost
  bool held_ = false;  // nothing new is begun: a rank is being stopped
};

}  // namespace tensorfold
