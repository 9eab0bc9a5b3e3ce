// SequenceCache: the sequences of one rank, their pool and their snapshots, and the commands by
// which a step plan changes them. Owned by the engine thread; allocates everything when created.
//
// Commands that can't be carried out are errors that name the command and leave the cache as it
// was before that command. Commands for the disk tier are refused when there is none; a record that
// turns out not to be there or not to fit leaves its block or snapshot unusable, which is an error.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/status.h"
#include "engine/cache/block_pool.h"
#include "engine/cache/cache_layout.h"
#include "engine/cache/cache_tier.h"
#include "engine/cache/sequence_state.h"
#include "engine/cache/snapshot_store.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

class SequenceCache {
 public:
  // Pool and rings lie in the memory of `device`; its copies run on `stream` (nullptr: host
  // memory).
  static Result<SequenceCache> create(const CacheLayout& layout, Device& device = cpu_device(),
                                      Stream* stream = nullptr);

  // `notes`: of the plan.
  Status apply(const CacheCommand& command, std::span<const CacheNote> notes = {});
  void set_tier(CacheTier* tier) { tier_ = tier; }  // outlives the cache; nullptr: none

  const CacheLayout& layout() const { return layout_; }
  BlockPool& pool() { return pool_; }
  const BlockPool& pool() const { return pool_; }
  int64_t bytes() const { return layout_.bytes(); }
  int64_t snapshot_bytes() const { return snapshots_.bytes(); }

  // nullptr: no such slot, or not open.
  SequenceState* find(SlotId slot);
  const SequenceState* find(SlotId slot) const;

  // Whether positions [first, end) of the sequence may be written: its blocks reach that far and no
  // other sequence holds the ones that would change.
  Status check_writable(const SequenceState& state, int64_t first, int64_t end) const;

 private:
  Status open_slot(SlotId slot);
  Status close_slot(SequenceState& state);
  RingCopies rings() const { return {device_, stream_}; }
  Status append_block(SequenceState& state, BlockId block);
  Status copy_block(const SequenceState& state, BlockId to, int64_t from);
  Status snapshot(SequenceState& state, bool encoder_only, int64_t number);
  Status restore(SequenceState& state, int64_t number, int64_t cut);
  Status use_tier(const CacheCommand& command, const CacheNote& note);
  Status compare(const CacheCommand& command, const CacheNote& note);
  Status spill_block(BlockId block, const CacheNote& note);
  Status fill_block(BlockId block, const CacheRecord& record);

  CacheLayout layout_;
  Device* device_ = nullptr;
  Stream* stream_ = nullptr;
  BlockPool pool_;
  std::vector<SequenceState> slots_;
  SnapshotStore snapshots_;
  CacheTier* tier_ = nullptr;
  std::vector<std::byte> staging_;  // one block
  std::vector<std::byte> record_;   // one snapshot
  bool block_equal_ = true;         // by the last kCompareBlock
};

}  // namespace tensorfold
