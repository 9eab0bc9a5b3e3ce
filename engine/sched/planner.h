// Planner: requests and cache state to StepPlans. Pure: no clock, no device, no I/O; the same calls
// in the same order give the same plans, byte for byte. Owned by the engine thread of the head.
//
// One turn of the engine's loop: enqueue()/remove() as requests come and go, admit(), then plan(),
// the step runs, then per sequence advance() with the tokens that it keeps (and force() for tokens
// that are put in), or close(). A plan must be committed before the next one is made.
//
// Policy (docs/scheduling.md has the bounds). Every sequence that generates takes part in every
// step with 1 + k rows, unless the caller holds it back for want of its mask. Beside them up to
// `prefill_rows` rows of prompts, so the gap between two tokens of a reply stays within the time of
// one chunk; engine/sched/fill_shares.h deals them out. Whose turn in the queue it is says
// engine/sched/fair_queue.h; what waits for memory holds back those behind it. A foreground
// sequence that finds no room takes that of background ones: they are set aside, wait at the head
// of their line and go on where they were, their reply's tokens fed again as generated rows. One
// set aside kSetAsideMax times, or admitted by right, stays. A sequence has blocks for what is
// known of it and for some of its reply, and gets more as it grows (engine/sched/pool_growth.cc).
// One whose prefix came from disk waits until a few rows of it were proved; if they were not, it
// begins anew (engine/sched/prefix_planner.cc).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/sched/block_ledger.h"
#include "engine/sched/cache_index.h"
#include "engine/sched/fair_queue.h"
#include "engine/sched/fill_shares.h"
#include "engine/sched/sequence_spec.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

inline constexpr int64_t kReplyAllowanceTokens = 4096;

struct PlannerOptions {
  int slots = 4;            // 1..kSequencesMax
  int prefill_rows = 2048;  // prompt rows in one step, 1..kPrefillRowsMax
  int64_t pool_blocks = 0;
  // Exact prefill: decoder rows before the prompt's end, ModelConfig::cone_rows(). Bounded replay:
  // the window. The decoder does not look behind its first row either way.
  int64_t decoder_span = 128;
  int draft_rows = 0;  // most drafts per sequence and step, 0..kDraftRowsMax
  // Positions of its reply that a sequence has blocks for when it is admitted.
  int64_t reply_allowance = kReplyAllowanceTokens;
};

inline constexpr int kSetAsideMax = 4;            // times that background gives way to what comes
inline constexpr int kAllowanceDoublingsMax = 3;  // of those that were set aside
inline constexpr int kGivenRowsMax = 1 + kDraftRowsMax;  // given rows that count as generated

struct Admitted {
  uint64_t request = 0;
  SlotId slot = 0;
  int64_t cached_positions = 0;
  bool resumed = false;  // it had a slot before
};

struct SetAside {
  uint64_t request = 0;
  SlotId slot = 0;  // that it had
};

// What the caller wants of a sequence in the next step. Without one no drafts, but behind the last
// rows that fill it: there as many as may be.
struct DraftChoice {
  SlotId slot = 0;
  int32_t verify = 0;   // drafts of the last step to verify, cut to what there is and may follow
  int32_t propose = 0;  // drafts to propose behind this step
  bool held = false;    // it takes no part in this step
  // Drafts to verify instead of those that the last step left; at most draft_rows count.
  std::vector<int32_t> given = {};
};

class Planner {
 public:
  Planner(const PlannerOptions& options, CacheIndex& cache);

  void enqueue(SequenceSpec spec);
  bool remove(uint64_t request);  // from the queue; false: it isn't there
  // Before enqueue(), every turn until true: a part of its prompt is being read from disk.
  bool prefix_ready(const SequenceSpec& spec);
  void forget_prefix(uint64_t request) {
    cache_.forget_request(request);
  }                               // not enqueued after all
  std::vector<Admitted> admit();  // gives those that run what they need, then takes what fits
  // By the last admit(): back in the queue, without a slot. Some may be among its admissions.
  const std::vector<SetAside>& set_aside() const { return set_aside_; }

  // True when plan() would have rows or commands.
  bool has_work() const;
  // `mask_words`: 0, or the size of a mask row; sequences in `constrained` get mask rows, to be
  // filled in by the caller.
  StepPlan plan(std::span<const DraftChoice> choices, std::span<const SlotId> constrained,
                int32_t mask_words);

  // The step gave `tokens` (the accepted ones) and left `drafts` proposals on the device.
  void advance(SlotId slot, std::span<const int32_t> tokens, int32_t drafts);
  // The next token of the sequence is decided: it is given instead of sampled.
  void force(SlotId slot, int32_t token);
  // `spoiled`: its rows were not numbers; nothing that it left in the cache serves again.
  void close(SlotId slot, bool spoiled = false);
  void flush_cache(bool disk) { cache_.flush(disk, ledger_, commands_); }

  // Of an open slot.
  int64_t computed(SlotId slot) const { return at(slot).computed; }
  int64_t prompt_tokens(SlotId slot) const { return at(slot).prompt_tokens; }
  int64_t reply_left(SlotId slot) const;
  int32_t drafts_ready(SlotId slot) const { return at(slot).drafts; }
  // Rows before it generates: the rest of its prompt, or of a reply that is fed again; else 0.
  int64_t fill_left(SlotId slot) const;
  bool generating(SlotId slot) const { return fill_left(slot) == 0; }

  int busy() const;
  int prefilling() const;
  int waiting() const { return queue_.size(); }
  const BlockLedger& ledger() const { return ledger_; }

 private:
  struct Sequence {
    bool open = false;
    SequenceSpec spec;
    std::vector<int32_t> ids;  // known: prompt, then reply
    int64_t prompt_tokens = 0;
    int64_t computed = 0;         // positions that the model holds
    std::vector<BlockId> blocks;  // its block table; the first may be shared
    int64_t promised = 0;         // blocks still promised
    int32_t drafts = 0;           // proposals left on the device
    int32_t propose = 0;          // behind its last rows that fill it
    bool on_device = false;       // so is the last known id, and it is the only one not computed
    int64_t waited_steps = 0;
    int64_t planned_rows = 0;  // of the plan that is not committed yet
    bool stays = false;        // is not set aside
    // The last so many of `computed` are still to be computed anew (PrefixMatch::recheck_rows).
    int32_t recheck_rows = 0;
    RowClass recheck_class = RowClass::kPrompt;
  };

  const Sequence& at(SlotId slot) const;
  Sequence& at(SlotId slot);
  bool room_for(const SequenceSpec& spec) const;
  // engine/sched/prefix_planner.cc
  bool pool_has(const SequenceSpec& spec) const;
  void start_behind_match(Sequence& s, int64_t reserve, SlotId slot);
  void restart_untrue();
  bool unproved(SlotId slot, StepPlan& plan);
  SequenceView view(SlotId slot) const;
  // engine/sched/pool_growth.cc
  int64_t reserve_of(const SequenceSpec& spec) const;
  static bool grows(const Sequence& s);  // has not yet all the blocks that it may need
  int64_t growing() const;
  int64_t lacking(const Sequence& s) const;
  static bool junior(const Sequence& a, const Sequence& b);
  void grow();
  bool extend(Sequence& s, int64_t blocks);

  bool make_room(const SequenceSpec& spec);  // by setting background sequences aside
  std::vector<SlotId> least_to_set_aside(const SequenceSpec& spec) const;
  void set_aside(SlotId slot, bool spoiled = false);
  Admitted open(SequenceSpec spec, bool stays);
  int64_t blocks_held(const Sequence& s) const;
  bool held(SlotId slot) const;
  void add_generated(SlotId slot, const DraftChoice& choice, StepPlan& plan);
  void fill(StepPlan& plan);
  void add_chunk(SlotId slot, int64_t rows, StepPlan& plan);
  void add_scored(SlotId slot, int64_t rows, StepPlan& plan);  // engine/sched/scored_chunk.cc
  static bool scores(const Sequence& s) { return s.spec.sampling.prompt_logprobs >= 0; }
  SlotId next_scored() const;
  void add_replayed(SlotId slot, int64_t rows, StepPlan& plan);
  void add_sample(const Sequence& s, Slice& slice, int32_t verify_rows, int32_t propose,
                  StepPlan& plan);
  void give_tokens(const Sequence& s, Slice& slice, StepPlan& plan) const;
  void cover(Sequence& s, SlotId slot, int64_t positions, StepPlan& plan);

  const PlannerOptions options_;
  CacheIndex& cache_;
  BlockLedger ledger_;
  std::array<Sequence, kSequencesMax> sequences_;
  FairQueue queue_;
  FillShares shares_;
  std::vector<SetAside> set_aside_;
  std::vector<SlotId> held_;  // in the plan that is being made
  CacheCommands commands_;    // for the next plan
  uint64_t next_step_ = 1;
};

}  // namespace tensorfold
