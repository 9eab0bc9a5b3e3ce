// BlockLedger: the planner's account of the shared block pool: which blocks are free, who holds the
// others, and how many free ones are promised to sequences that have been admitted. Pure
// bookkeeping on the head; the blocks themselves are in engine/cache.
//
// A block is held by sequences (their tables) and by the prefix cache (its entries); it is free
// when nobody holds it. What only the cache holds can be had back by dropping entries. Invariants:
// promised <= free, so a sequence that was admitted never finds the pool empty; a free block has no
// holders.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/sched/step_plan.h"

namespace tensorfold {

class BlockLedger {
 public:
  explicit BlockLedger(int64_t blocks);

  bool promise(int64_t blocks);  // false: not that many unpromised blocks are free
  void release_promise(int64_t blocks);
  BlockId take();                 // one promised block, held by one sequence
  void share(BlockId block);      // one more sequence holds it; it must not be free
  void give_back(BlockId block);  // one sequence less
  void keep(BlockId block);       // one more entry of the cache; it must not be free
  void forget(BlockId block);     // one entry less

  int64_t total() const { return total_; }
  // Held by sequences; the cache may hold them too.
  int64_t used() const { return total_ - static_cast<int64_t>(free_.size()) - cached_; }
  int64_t cached() const { return cached_; }  // held by the cache alone
  bool held_by_sequence(BlockId block) const { return at(block).sequences > 0; }
  bool held_by_one(BlockId block) const { return at(block).sequences == 1; }
  bool last_entry(BlockId block) const {  // forget() would free it
    return at(block).sequences == 0 && at(block).entries == 1;
  }
  int64_t promised() const { return promised_; }
  int64_t unpromised() const { return static_cast<int64_t>(free_.size()) - promised_; }

 private:
  struct Holders {
    int32_t sequences = 0;
    int32_t entries = 0;
  };
  const Holders& at(BlockId block) const;
  Holders& at(BlockId block);

  const int64_t total_;
  int64_t promised_ = 0;
  int64_t cached_ = 0;
  std::vector<Holders> holders_;
  std::vector<BlockId> free_;  // last in, first out: the order is part of plan reproducibility
};

// Blocks that hold `positions` positions.
inline int64_t blocks_for(int64_t positions) {
  return (positions + kBlockPositions - 1) / kBlockPositions;
}

}  // namespace tensorfold
