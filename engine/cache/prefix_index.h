// PrefixIndex: the prefix cache as the planner sees it. Which snapshot a sequence may start from,
// when snapshots are taken, what is dropped when room is short. Owned by the engine thread of the
// head; pure: no clock, no device, no I/O. docs/cache.md has the rules with their reasons.
//
// A hit must equal a cold prefill bit for bit. From a snapshot at B the encoder goes on exactly.
// The decoder and the drafter do so from a full snapshot; otherwise the prompt's end must be at
// least `decoder_span` rows behind B, so that the decoder starts as it would have started cold.
// With bounded replay the cold decoder starts one window before the prompt's end whatever was there
// before, so there only that distance counts.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/prefix_tree.h"
#include "engine/sched/cache_index.h"

namespace tensorfold {

inline constexpr int64_t kKeptSpacingPositions = 4096;  // between snapshots inside a prompt
inline constexpr int64_t kKeptPositionsMin = 16;        // shorter prefixes are not kept
inline constexpr int64_t kBranchPositionsMin = 128;     // shared beyond the match, to split for it
inline constexpr int64_t kHeadPositionsMin = 16;  // a prompt's head beyond the match, likewise
inline constexpr int64_t kCutPositionsMax = 8;    // a full snapshot is cut back at most so far

struct PrefixOptions {
  int window = 128;
  int64_t decoder_span = 128;  // PlannerOptions::decoder_span
  bool exact = true;           // false: bounded replay
  bool reuse_replies = true;   // keep generated rows too
  // The snapshot store of every rank (SnapshotStore), in units of one encoder snapshot.
  int64_t snapshot_units = 0;  // 0: no cache
  int32_t full_units = 2;
  int64_t unit_bytes = 0;
  uint64_t fingerprint_mask = ~uint64_t{0};  // tests: hashes that collide
};

struct PrefixStats {
  uint64_t lookups = 0, hits = 0;
  uint64_t hit_positions = 0;  // not computed again
  uint64_t kept = 0;           // snapshots taken
  uint64_t evicted = 0;        // snapshots dropped for room
  uint64_t spoiled = 0;        // snapshots dropped because rows were not numbers
  uint64_t flushes = 0;
  int64_t snapshots = 0, snapshot_bytes = 0, snapshot_bytes_max = 0;
  int64_t blocks = 0;  // nodes: whole blocks that can be shared
};

// Leading positions of `held` (which begins at `first`) that equal the query's text; images whole
// or not at all.
int64_t equal_positions(const HeldText& held, int64_t first, const PrefixQuery& query);

class PrefixIndex : public CacheIndex {
 public:
  explicit PrefixIndex(const PrefixOptions& options);

  bool ready(const PrefixQuery& query, BlockLedger& ledger, CacheCommands& out) override;
  void forget_request(uint64_t request) override;
  PrefixMatch match(const PrefixQuery& query) override;
  bool reclaim(int64_t blocks, const PrefixMatch& match, BlockLedger& ledger,
               CacheCommands& out) override;
  void open(SlotId slot, const PrefixQuery& query, const PrefixMatch& match) override;
  int64_t chunk_end(SlotId slot, int64_t first, int64_t end) override;
  int64_t decoder_until(SlotId slot, int64_t first, int64_t prompt_tokens) override;
  void advanced(const SequenceView& sequence, BlockLedger& ledger, CacheCommands& out) override;
  void close(const SequenceView& sequence, SequenceEnd end, BlockLedger& ledger,
             CacheCommands& out) override;
  // Drops what an open sequence has left in the cache and what may have come of it. What it is
  // called, for those who keep it elsewhere.
  std::vector<CacheNote> spoil(const SequenceView& sequence, BlockLedger& ledger,
                               CacheCommands& out);
  void flush(bool disk, BlockLedger& ledger, CacheCommands& out) override;
  bool has_commands() const override { return false; }
  void take_commands(CacheCommands&) override {}

  // For what enters from disk (engine/cache/spill/spilled_index.h). enter() gives the snapshot a
  // number and hangs it at `made.at`; false: there is no room for it.
  const BlockDigest& root(SlotId slot) const;  // of an open sequence
  std::span<const ImageSpan> images(SlotId slot) const { return live(slot).images; }
  PrefixTree& tree() { return tree_; }
  const PrefixTree& tree() const { return tree_; }
  bool make_room(bool full, BlockLedger& ledger, CacheCommands& out);
  void drop_restored(BlockLedger& ledger, CacheCommands& out);  // what came from disk
  bool enter(PrefixSnapshot& made, std::span<const BlockId> blocks, BlockLedger& ledger,
             CacheCommands& out);

  PrefixStats stats() const;
  const PrefixOptions& options() const { return options_; }

 private:
  // A running sequence.
  struct Live {
    PrefixNode* node = nullptr;  // the whole blocks of it that are entered
    int64_t resumed = 0;         // it started here
    RowClassBits resumed_tail;   // classes between the block edge before and there
    std::vector<ImageSpan> images;
    int64_t prompt_tokens = 0;
    int64_t last_kept = 0;
    int64_t branch = -1;             // others left this text here: worth a snapshot
    bool branch_full = false;        // and worth the decoder's rows before it, wherever it is
    int64_t exact_from = 0;          // decoder rows are those of an exact run from here on
    uint64_t opened = 0;             // ascending
    bool keeps = true;               // nothing that it stands on was found to be spoiled
    int64_t first_kept = INT64_MAX;  // length of its first snapshot
    std::vector<CacheNote> kept;     // what it has entered: snapshots and blocks
    std::vector<bool> entered;       // by block
  };
  struct Walk;

  const Live& live(SlotId slot) const;
  void consider(PrefixSnapshot& snapshot, const PrefixQuery& query, int64_t equal,
                Walk& walk) const;
  void consider_node(PrefixNode& node, const PrefixQuery& query, Walk& walk) const;
  void consider_children(PrefixNode& node, const PrefixQuery& query, Walk& walk) const;
  bool may_serve(const PrefixSnapshot& snapshot, int64_t positions, const PrefixQuery& query) const;
  Walk walk(const PrefixQuery& query);
  BlockText text_of(const SequenceView& sequence, const Live& live, int64_t first,
                    int64_t end) const;
  void note_entered(const SequenceView& sequence, Live& live) const;
  void keep(const SequenceView& sequence, Live& live, BlockLedger& ledger, CacheCommands& out);
  bool make_units(int32_t units, BlockLedger& ledger, CacheCommands& out);
  void drop(PrefixSnapshot* snapshot, BlockLedger& ledger, CacheCommands& out);

  const PrefixOptions options_;
  PrefixTree tree_;
  std::array<Live, kSequencesMax> live_;
  int64_t last_common_ = 0;  // of the last match(): equal to something that is kept
  uint64_t opened_ = 0;
  int64_t units_used_ = 0;
  std::vector<int64_t> free_numbers_;
  PrefixStats counts_;
};

}  // namespace tensorfold
