// BlockPool: the shared blocks of global entries, with reference counts. Owned by the engine
// thread. Block ids are chosen by the planner; the pool only counts who uses them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/status.h"
#include "engine/sched/step_plan.h"
#include "kernels/device.h"

namespace tensorfold {

class BlockPool {
 public:
  static Result<BlockPool> create(int64_t blocks, int64_t block_bytes,
                                  Device& device = cpu_device());

  // Device memory: on a GPU it is read and written by Device::download and upload only.
  uint8_t* base() { return memory_.get(); }
  const uint8_t* base() const { return memory_.get(); }
  int64_t block_bytes() const { return block_bytes_; }
  int64_t blocks() const { return static_cast<int64_t>(references_.size()); }
  int64_t used() const { return used_; }

  bool valid(BlockId block) const { return block >= 0 && block < blocks(); }
  int32_t references(BlockId block) const { return references_[static_cast<size_t>(block)]; }
  // What its positions hold, as SequenceState has it; host memory, [kBlockPositions].
  int32_t* ids(BlockId block) { return ids_.get() + int64_t{block} * 2 * kBlockPositions; }
  const int32_t* ids(BlockId block) const {
    return ids_.get() + int64_t{block} * 2 * kBlockPositions;
  }
  int32_t* engram_ids(BlockId block) { return ids(block) + kBlockPositions; }
  const int32_t* engram_ids(BlockId block) const { return ids(block) + kBlockPositions; }
  uint8_t* bytes(BlockId block) { return memory_.get() + block * block_bytes_; }

  void add_reference(BlockId block);
  void drop_reference(BlockId block);

 private:
  DeviceArray<uint8_t> memory_;
  DeviceArray<int32_t> ids_;  // [blocks, ids and engram ids, kBlockPositions]
  int64_t block_bytes_ = 0;
  int64_t used_ = 0;  // blocks with a reference
  std::vector<int32_t> references_;
};

}  // namespace tensorfold
