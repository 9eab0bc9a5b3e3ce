// Accounts of the block pool. Owner: the planner.
#include "engine/sched/block_ledger.h"

#include <utility>

#include "engine/base/check.h"

namespace tensorfold {

BlockLedger::BlockLedger(int64_t blocks) : total_(blocks) {
  TF_CHECK(blocks >= 0 && blocks <= INT32_MAX);
  free_.reserve(static_cast<size_t>(blocks));
  holders_.resize(static_cast<size_t>(blocks));
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

const BlockLedger::Holders& BlockLedger::at(BlockId block) const {
  TF_CHECK(block >= 0 && block < total_);
  return holders_[static_cast<size_t>(block)];
}

BlockLedger::Holders& BlockLedger::at(BlockId block) {
  return const_cast<Holders&>(std::as_const(*this).at(block));
}

BlockId BlockLedger::take() {
  TF_CHECK(promised_ > 0 && !free_.empty());
  --promised_;
  const BlockId block = free_.back();
  free_.pop_back();
  at(block).sequences = 1;
  return block;
}

void BlockLedger::share(BlockId block) {
  Holders& h = at(block);
  TF_CHECK(h.sequences > 0 || h.entries > 0);
  if (h.sequences++ == 0) --cached_;
}

void BlockLedger::give_back(BlockId block) {
  Holders& h = at(block);
  TF_CHECK_LT(0, h.sequences);
  if (--h.sequences > 0) return;
  if (h.entries > 0) {
    ++cached_;
  } else {
    free_.push_back(block);
  }
}

void BlockLedger::keep(BlockId block) {
  Holders& h = at(block);
  TF_CHECK(h.sequences > 0 || h.entries > 0);
  ++h.entries;
}

void BlockLedger::forget(BlockId block) {
  Holders& h = at(block);
  TF_CHECK_LT(0, h.entries);
  if (--h.entries > 0 || h.sequences > 0) return;
  --cached_;
  free_.push_back(block);
}

}  // namespace tensorfold
