// BlockLedger: the planner's account of the shared block pool: which blocks are free, and how many
// of those are promised to sequences that have been admitted. Pure bookkeeping on the head; the
// blocks themselves are in engine/cache.
//
// Invariant: promised <= free, so a sequence that was admitted never finds the pool empty.
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
  BlockId take();  // one promised block
  void give_back(BlockId block);

  int64_t total() const { return total_; }
  int64_t used() const { return total_ - static_cast<int64_t>(free_.size()); }
  int64_t promised() const { return promised_; }

 private:
  const int64_t total_;
  int64_t promised_ = 0;
  std::vector<BlockId> free_;  // last in, first out: the order is part of plan reproducibility
};

// Blocks that hold `positions` positions.
inline int64_t blocks_for(int64_t positions) {
  return (positions + kBlockPositions - 1) / kBlockPositions;
}

}  // namespace tensorfold
