// Planner: requests and cache state to StepPlans. Pure: no clock, no device, no I/O; the same calls
// in the same order give the same plans, byte for byte. Owned by the engine thread of the head.
//
// One turn of the engine's loop: enqueue()/remove() as requests come and go, admit(), then plan(),
// the step runs, then per sequence advance() with the tokens that it keeps (and force() for tokens
// that are put in), or close(). A plan must be committed before the next one is made.
//
// Policy. Every sequence that generates takes part in every step with 1 + k rows. Beside them up
// to `prefill_rows` prompt rows, so the gap between two tokens of a reply stays within the time of
// one chunk. Prompts with the fewest rows left go first, aged by one chunk per step without rows: a
// prompt of n chunks waits at most n steps before every newcomer is behind it.
// The queue is first come, first served, foreground before background; what waits for memory
// holds back those behind it, so that nothing is overtaken for ever.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/sched/block_ledger.h"
#include "engine/sched/cache_index.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

struct PlannerOptions {
  int slots = 4;            // 1..kSequencesMax
  int prefill_rows = 2048;  // prompt rows in one step, 1..kPrefillRowsMax
  int64_t pool_blocks = 0;
  // Exact prefill: decoder rows before the prompt's end, ModelConfig::cone_rows(). Bounded replay:
  // the window. The decoder does not look behind its first row either way.
  int64_t decoder_span = 128;
  int draft_rows = 0;  // most drafts per sequence and step, 0..kDraftRowsMax
};

struct SequenceSpec {
  uint64_t request = 0;
  std::vector<int32_t> prompt;
  int64_t reply_tokens = 0;  // most tokens of the reply, from the price
  int64_t blocks = 0;        // from the price
  SampleSpec sampling;       // slot, positions, rows and mask are the planner's to fill in
  bool draft = true;
  bool background = false;
  std::string cache_salt;
};

struct Admitted {
  uint64_t request = 0;
  SlotId slot = 0;
  int64_t cached_positions = 0;
};

// What the caller wants of a generating sequence in the next step; without one: no drafts.
struct DraftChoice {
  SlotId slot = 0;
  int32_t verify = 0;   // drafts of the last step to verify, cut to what there is and may follow
  int32_t propose = 0;  // drafts to propose behind this step
};

class Planner {
 public:
  Planner(const PlannerOptions& options, CacheIndex& cache);

  void enqueue(SequenceSpec spec);
  bool remove(uint64_t request);  // from the queue; false: it isn't there
  std::vector<Admitted> admit();  // as many as fit now

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
  void close(SlotId slot);

  // Of an open slot.
  int64_t computed(SlotId slot) const { return at(slot).computed; }
  int64_t prompt_tokens(SlotId slot) const { return at(slot).prompt_tokens; }
  int64_t reply_left(SlotId slot) const;
  int32_t drafts_ready(SlotId slot) const { return at(slot).drafts; }
  bool generating(SlotId slot) const;  // its prompt is done

  int busy() const;
  int prefilling() const;
  int waiting() const { return static_cast<int>(foreground_.size() + background_.size()); }
  const BlockLedger& ledger() const { return ledger_; }

 private:
  struct Sequence {
    bool open = false;
    SequenceSpec spec;
    std::vector<int32_t> ids;  // known: prompt, then reply
    int64_t prompt_tokens = 0;
    int64_t computed = 0;         // positions that the model holds
    std::vector<BlockId> blocks;  // its block table: first the cache's, then its own
    size_t shared = 0;            // how many are the cache's
    int64_t promised = 0;         // blocks still promised
    int32_t drafts = 0;           // proposals left on the device
    bool on_device = false;       // so is the last known id, and it is the only one not computed
    int64_t waited_steps = 0;
    int64_t planned_rows = 0;  // of the plan that is not committed yet
  };

  const Sequence& at(SlotId slot) const;
  Sequence& at(SlotId slot);
  bool admit_first(std::deque<SequenceSpec>& queue, std::vector<Admitted>& out);
  std::vector<SlotId> prefill_order() const;
  void add_generated(SlotId slot, const DraftChoice& choice, StepPlan& plan);
  void add_chunk(SlotId slot, int64_t rows, StepPlan& plan);
  void add_sample(const Sequence& s, Slice& slice, int32_t verify_rows, int32_t propose,
                  StepPlan& plan);
  void give_tokens(const Sequence& s, Slice& slice, StepPlan& plan) const;
  void cover(Sequence& s, SlotId slot, int64_t positions, StepPlan& plan);

  const PlannerOptions options_;
  CacheIndex& cache_;
  BlockLedger ledger_;
  std::array<Sequence, kSequencesMax> sequences_;
  std::deque<SequenceSpec> foreground_;
  std::deque<SequenceSpec> background_;
  std::vector<CacheCommand> commands_;  // for the next plan
  uint64_t next_step_ = 1;
};

}  // namespace tensorfold
