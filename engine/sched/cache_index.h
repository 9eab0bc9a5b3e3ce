// CacheIndex: what the planner asks of the prefix cache, and what it tells it.
//
// A sequence starts behind a match: the matched blocks become the first of its table (shared, never
// written again), the first positions of a block that ends inside are copied into a block of its
// own, and its rings come from a snapshot. While it runs, the index takes snapshots of it and
// enters its blocks; both by commands in the next plan. Called by the planner only, in the order of
// its own calls: the same calls give the same answers and commands, so plans stay reproducible.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/cache/block_digest.h"
#include "engine/sched/block_ledger.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

struct PrefixQuery {
  uint64_t request = 0;
  std::span<const int32_t> ids;  // known: the prompt, and a reply that is fed again behind it
  int64_t prompt_tokens = 0;     // ids from here on are generated rows
  std::string_view salt;
  std::span<const ImageSpan> images;
  int64_t head_tokens = 0;  // the first so many are likely to begin other prompts too
  bool cold = false;        // matches nothing, and nothing of it is kept
};

struct PrefixMatch {
  int64_t positions = 0;        // the sequence starts here; fewer than it has ids
  std::vector<BlockId> blocks;  // whole ones that hold them, in order, to be shared
  BlockId tail = -1;      // positions % kBlockPositions more positions, to be copied; -1: none
  int64_t snapshot = -1;  // rings at `snapshot_positions`; -1 with no positions
  int64_t snapshot_positions = 0;  // >= positions: cut back by the restore
  BlockId behind = -1;  // cut back over a block edge: the block that the snapshot ends in
  // The last so many of `positions` are computed anew first, by rows of that class, to see whether
  // what came from disk is what this process computes. They lie in `tail`.
  int32_t recheck_rows = 0;
  RowClass recheck_class = RowClass::kPrompt;
};

// Blocks of the pool that only the cache holds and that a match keeps there.
inline int64_t kept_blocks(const PrefixMatch& match, const BlockLedger& ledger) {
  const auto kept = [&](BlockId b) { return b >= 0 && !ledger.held_by_sequence(b) ? 1 : 0; };
  int64_t n = kept(match.tail) + kept(match.behind);
  for (const BlockId b : match.blocks) n += kept(b);
  return n;
}

// A sequence as the planner knows it, between two steps.
struct SequenceView {
  SlotId slot = 0;
  std::span<const int32_t> ids;
  int64_t prompt_tokens = 0;
  int64_t computed = 0;  // positions that the model holds
  std::span<const BlockId> blocks;
};

// How a sequence ends, as the cache sees it.
enum class SequenceEnd : uint8_t {
  kWhole = 0,    // the model holds exactly `computed` positions of it and none of them failed
  kCut = 1,      // in the middle of a step
  kSpoiled = 2,  // rows of it were not numbers: nothing that came of it may serve again
};

// Commands for the next plan, with their notes.
struct CacheCommands {
  std::vector<CacheCommand> commands;
  std::vector<CacheNote> notes;
  bool empty() const { return commands.empty(); }
};

class CacheIndex {
 public:
  virtual ~CacheIndex() = default;

  // False: records for this query are being read from disk; ask again before the next step. True:
  // there is nothing (more) to wait for. Never asked for: as if true.
  virtual bool ready(const PrefixQuery& query, BlockLedger& ledger, CacheCommands& out) = 0;
  virtual void forget_request(uint64_t request) = 0;  // it left the queue without a slot

  // The longest match; changes nothing. Valid until the next call of another function.
  virtual PrefixMatch match(const PrefixQuery& query) = 0;
  // Makes `blocks` unpromised blocks free by dropping entries, the oldest first, never those of
  // `match`. False, and nothing is dropped, when there are not that many.
  virtual bool reclaim(int64_t blocks, const PrefixMatch& match, BlockLedger& ledger,
                       CacheCommands& out) = 0;

  // The sequence has a slot and starts behind `match` (of the last call of match()).
  virtual void open(SlotId slot, const PrefixQuery& query, const PrefixMatch& match) = 0;
  // Where a chunk of prompt rows [first, end) should end at the latest.
  virtual int64_t chunk_end(SlotId slot, int64_t first, int64_t end) = 0;
  // For rows from `first` on the decoder starts PlannerOptions::decoder_span before this position.
  virtual int64_t decoder_until(SlotId slot, int64_t first, int64_t prompt_tokens) = 0;
  // A step was committed for the sequence.
  virtual void advanced(const SequenceView& sequence, BlockLedger& ledger, CacheCommands& out) = 0;
  // It ends; called before its blocks are given back.
  virtual void close(const SequenceView& sequence, SequenceEnd end, BlockLedger& ledger,
                     CacheCommands& out) = 0;

  // The rows of PrefixMatch::recheck_rows are computed. The sequence waits while it is kWaiting;
  // with kNo it must not go on.
  enum class Trust : uint8_t { kYes = 0, kWaiting = 1, kNo = 2 };
  virtual void recomputed(SlotId /*slot*/, CacheCommands& /*out*/) {}
  virtual Trust trust(SlotId /*slot*/) const { return Trust::kYes; }

  // Forgets everything; running sequences go on. `disk`: records on disk too.
  virtual void flush(bool disk, BlockLedger& ledger, CacheCommands& out) = 0;

  // Commands that wait for a step (writing behind).
  virtual bool has_commands() const = 0;
  virtual void take_commands(CacheCommands& out) = 0;
};

// A cache that holds nothing.
class EmptyCacheIndex : public CacheIndex {
 public:
  bool ready(const PrefixQuery&, BlockLedger&, CacheCommands&) override { return true; }
  void forget_request(uint64_t) override {}
  PrefixMatch match(const PrefixQuery&) override { return {}; }
  bool reclaim(int64_t blocks, const PrefixMatch&, BlockLedger& ledger, CacheCommands&) override {
    return ledger.unpromised() >= blocks;
  }
  void open(SlotId, const PrefixQuery&, const PrefixMatch&) override {}
  int64_t chunk_end(SlotId, int64_t, int64_t end) override { return end; }
  int64_t decoder_until(SlotId, int64_t, int64_t prompt_tokens) override { return prompt_tokens; }
  void advanced(const SequenceView&, BlockLedger&, CacheCommands&) override {}
  void close(const SequenceView&, SequenceEnd, BlockLedger&, CacheCommands&) override {}
  void flush(bool, BlockLedger&, CacheCommands&) override {}
  bool has_commands() const override { return false; }
  void take_commands(CacheCommands&) override {}
};

}  // namespace tensorfold
