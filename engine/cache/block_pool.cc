// Reference counts of the shared blocks (engine/cache/block_pool.h).
#include "engine/cache/block_pool.h"

#include <string>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {

Result<BlockPool> BlockPool::create(int64_t blocks, int64_t block_bytes, Device& device) {
  BlockPool pool;
  pool.memory_ = allocate_array<uint8_t>(device, blocks * block_bytes);
  if (pool.memory_ == nullptr)
    return unavailable("no memory for a cache pool of " + std::to_string(blocks * block_bytes) +
                       " bytes");
  pool.ids_ = allocate_array<int32_t>(cpu_device(), blocks * 2 * kBlockPositions);
  if (pool.ids_ == nullptr) return unavailable("no memory for the ids of the cache pool");
  pool.block_bytes_ = block_bytes;
  pool.references_.assign(static_cast<size_t>(blocks), 0);
  return pool;
}

void BlockPool::add_reference(BlockId block) {
  TF_CHECK(valid(block));
  if (references_[static_cast<size_t>(block)]++ == 0) ++used_;
}

void BlockPool::drop_reference(BlockId block) {
  TF_CHECK(valid(block));
  int32_t& count = references_[static_cast<size_t>(block)];
  TF_CHECK_OP(count, >, 0);
  if (--count == 0) --used_;
}

}  // namespace tensorfold
