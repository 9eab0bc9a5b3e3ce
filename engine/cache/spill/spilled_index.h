// SpilledIndex: the prefix index (engine/cache/prefix_index.h) with the disk behind it. Owned by
// the engine thread of the head; decides by names and notes, touches no file: plans carry what it
// decides to the ranks, whose CacheTier does it.
//
// Out: every snapshot that the index keeps is written behind, with the blocks below it that are not
// on disk yet, a few records a step and only while the tier has room. In: before a request is
// queued, ready() looks for a longer prefix on disk than memory has, stages its missing blocks and
// its rings, and enters them into the index when all are there. What is missing or damaged is tried
// around: the next best prefix, then a cold start. Away: what a failed sequence left is forgotten
// here at once and by the tiers before anything more is written. Exactness is the index's business:
// what was filled in is matched by it like everything else.
//
// Proof (spilled_proof.cc): files may be whole and yet hold what this process would not compute. So
// until that was seen once, a sequence that starts from disk computes the last rows of its prefix
// anew, and all ranks compare. Where they differ, what came from disk is dropped, with all that
// stands on it, and the prompt is computed.
//
// A name is a SHA-256 over everything before it, so whether a block on disk is the query's is
// computed from the query alone; the tier computed the name again from the ids that it read.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/cache/cache_tier.h"
#include "engine/cache/prefix_index.h"
#include "engine/cache/spill/disk_names.h"

namespace tensorfold {

inline constexpr int64_t kSpilledPositionsMin = 256;       // shorter prefixes are not written
inline constexpr int64_t kSpilledGainMin = 128;            // positions that a read must save
inline constexpr int kSpillRecordsPerStep = 16;            // given to the tier in one step
inline constexpr int kForgetsPerStep = 1024;               // records that it is told to forget
inline constexpr size_t kSpillWaitingMax = 4096;           // snapshots that wait to be written
inline constexpr int kSpillWriteTriesMax = 3;              // of one snapshot
inline constexpr int kStageTriesMax = 4;                   // prefixes tried for one request
inline constexpr int kRecheckRowsMax = 1 + kDraftRowsMax;  // as many as a slot has in any step

struct SpilledStats {
  uint64_t restored = 0;            // prefixes that came from disk
  uint64_t restored_positions = 0;  // beyond what memory had
  uint64_t failed = 0;              // tries that ended with a record missing
  uint64_t unwritten = 0;           // snapshots dropped from memory before they were on disk
};

class SpilledIndex final : public CacheIndex {
 public:
  // `tier` nullptr: no disk. Both outlive it.
  SpilledIndex(PrefixIndex& memory, CacheTier* tier);

  // Takes what the tier tells; once per turn.
  void poll();

  bool ready(const PrefixQuery& query, BlockLedger& ledger, CacheCommands& out) override;
  void forget_request(uint64_t request) override;
  PrefixMatch match(const PrefixQuery& query) override;
  bool reclaim(int64_t blocks, const PrefixMatch& match, BlockLedger& ledger,
               CacheCommands& out) override {
    return memory_.reclaim(blocks, match, ledger, out);
  }
  void open(SlotId slot, const PrefixQuery& query, const PrefixMatch& match) override;
  void recomputed(SlotId slot, CacheCommands& out) override;
  Trust trust(SlotId slot) const override;
  int64_t chunk_end(SlotId slot, int64_t first, int64_t end) override {
    return memory_.chunk_end(slot, first, end);
  }
  int64_t decoder_until(SlotId slot, int64_t first, int64_t prompt_tokens) override {
    return memory_.decoder_until(slot, first, prompt_tokens);
  }
  void advanced(const SequenceView& sequence, BlockLedger& ledger, CacheCommands& out) override;
  void close(const SequenceView& sequence, SequenceEnd end, BlockLedger& ledger,
             CacheCommands& out) override;
  void flush(bool disk, BlockLedger& ledger, CacheCommands& out) override;
  bool has_commands() const override;
  void take_commands(CacheCommands& out) override;

  SpilledStats stats() const { return counts_; }

 private:
  struct Waiting {  // a request whose records are being read
    DiskPrefix prefix;
    std::vector<CacheNote> staged;
    bool asked = false;  // the plan with its kStage commands has been made
    int tries = 0;
  };
  struct Kept {
    int64_t number = 0;
    BlockDigest name;
    int tries = 0;
  };
  struct Proof {  // of a running sequence
    CacheNote rings;
    int64_t number = 0;
    BlockId block = -1;
    Trust trust = Trust::kWaiting;
    std::optional<CacheNote> first_block;  // of its chain, when it turned out to be untrue
  };
  void ask_for_proof(const PrefixQuery& query, PrefixMatch& match) const;
  void judge(const TierEvent& event);
  void distrust(const Proof& proof, BlockLedger& ledger, CacheCommands& out);

  void note_kept(const CacheCommands& out, size_t first);
  void forget(const SequenceView& sequence, BlockLedger& ledger, CacheCommands& out);
  bool write(const Kept& kept, int& room, CacheCommands& out);
  bool on_its_way(const RecordKey& key) const;
  void offer(const CacheNote& note, int64_t where, const Kept& kept, CacheCommands& out);

  bool begin_staging(const PrefixQuery& query, Waiting& waiting, CacheCommands& out);
  // Blocks of the prefix that memory has not.
  std::vector<CacheNote> lacking(const DiskPrefix& prefix, const PrefixQuery& query) const;
  void wait_for(uint64_t request, Waiting waiting);
  void stop_waiting(uint64_t request);
  bool fill(const Waiting& waiting, const PrefixQuery& query, BlockLedger& ledger,
            CacheCommands& out);
  PrefixNode* enter_nodes(const DiskPrefix& prefix, const PrefixQuery& query);

  PrefixIndex& memory_;
  CacheTier* const tier_;
  DiskNames disk_;
  std::unordered_map<RecordKey, Kept, RecordKeyHash> pending_;  // given to the tier
  std::deque<Kept> to_write_;
  std::deque<CacheNote> to_forget_;
  std::unordered_map<uint64_t, Waiting> waiting_;             // by request
  std::unordered_map<RecordKey, int, RecordKeyHash> wanted_;  // by how many of these
  std::unordered_set<RecordKey, RecordKeyHash> filled_;       // by the plan that is being made
  std::array<std::optional<Proof>, kSequencesMax> proofs_;    // by slot
  bool proved_ = false;
  SpilledStats counts_;
};

}  // namespace tensorfold
