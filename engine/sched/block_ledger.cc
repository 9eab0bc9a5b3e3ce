// Accounts of the block pool. Owner: the planner.
#include "engine/sched/block_ledger.h"

#include "engine/base/check.h"

namespace tensorfold {

BlockLedger::BlockLedger(int64_t blocks) : total_(blocks) {
  TF_CHECK(blocks >= 0 && blocks <= INT32_MAX);
  free_.reserve(static_cast<size_t>(blocks));
  for (int64_t b = blocks - 1; b >= 0; --b) free_.push_back(static_cast<BlockId>(b));
}

bool BlockLedger::promise(int64_t blocks) {
  TF_CHECK_GE(blocks, 0);
  if (promised_ + blocks > static_cast<int64_t>(free_.size())) return false;
  promised_ += blocks;
  return true;
}

void BlockLedger::release_promise(int64_t blocks) {
  TF_CHECK(blocks >= 0 && blocks <= promised_);
  promised_ -= blocks;
}

BlockId BlockLedger::take() {
  TF_CHECK(promised_ > 0 && !free_.empty());
  --promised_;
  const BlockId block = free_.back();
  free_.pop_back();
  return block;
}

void BlockLedger::give_back(BlockId block) {
  TF_CHECK(block >= 0 && block < total_);
  TF_CHECK_LT(free_.size(), static_cast<size_t>(total_));
  free_.push_back(block);
}

}  // namespace tensorfold
