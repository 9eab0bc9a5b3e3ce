// Arithmetic of the cache's layout (engine/cache/cache_layout.h).
#include "engine/cache/cache_layout.h"

#include <algorithm>
#include <string>

#include "kernels/formats.h"

namespace tensorfold {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

Status check_bounds(int slots, int64_t context, int64_t pool_blocks) {
  if (slots < 1 || slots > kCacheSlotsMax)
    return invalid_argument("slots must be 1.." + std::to_string(kCacheSlotsMax) + ", not " +
                            std::to_string(slots));
  if (context < 1 || context > kCacheContextMax)
    return invalid_argument("context must be 1.." + std::to_string(kCacheContextMax) +
                            " positions, not " + std::to_string(context));
  if (pool_blocks < 1 || pool_blocks > kPoolBlocksMax)
    return invalid_argument("the cache pool must have 1.." + std::to_string(kPoolBlocksMax) +
                            " blocks, not " + std::to_string(pool_blocks));
  return ok_status();
}

}  // namespace

const CacheSource* CacheLayout::source(int layer) const {
  for (const CacheSource& s : sources)
    if (s.layer == layer) return &s;
  return nullptr;
}

int64_t CacheLayout::bytes() const {
  return pool_blocks * block_bytes + slots * (rings() * ring_bytes + pair_floats * 4) +
         snapshot_units * snapshot_unit_bytes();
}

int64_t CacheLayout::snapshot_unit_bytes() const {
  return aligned(decoder_start * ring_bytes + pair_floats * 4);
}

int32_t CacheLayout::full_snapshot_units() const {
  const int64_t unit = snapshot_unit_bytes();
  return static_cast<int32_t>((rings() * ring_bytes + pair_floats * 4 + unit - 1) / unit);
}

Result<CacheLayout> make_cache_layout(const ModelConfig& config, int slots, int64_t context,
                                      int64_t pool_blocks, int64_t snapshot_bytes) {
  CacheLayout l;
  l.slots = slots;
  l.context = context > 0 ? context : config.max_positions;
  const int64_t per_slot = (l.context + kBlockPositions - 1) / kBlockPositions;
  l.pool_blocks = pool_blocks > 0 ? pool_blocks : slots * per_slot;
  TF_RETURN_IF_ERROR(check_bounds(l.slots, l.context, l.pool_blocks));
  l.head_dim = config.head_dim;
  l.index_dim = config.index_head_dim;
  l.layers = config.layers;
  l.decoder_start = config.decoder_start;
  l.stages = config.dspark.stages;
  l.window = config.window;
  l.ring_rows = config.window + kRingSpareRows;
  l.ring_bytes = aligned(l.ring_rows * window_row_bytes(l.head_dim));
  for (int layer = 0; layer < config.layers; ++layer) {
    const LayerRole& role = config.roles[static_cast<size_t>(layer)];
    if (!role.owns_kv(layer)) continue;
    CacheSource s;
    s.layer = layer;
    s.ratio = role.ratio;
    s.entries_per_block = kBlockPositions / role.ratio;
    s.main_offset = l.block_bytes;
    s.index_offset = s.main_offset + aligned(s.entries_per_block * main_entry_bytes(l.head_dim));
    l.block_bytes = s.index_offset + aligned(s.entries_per_block * index_key_bytes(l.index_dim));
    if (role.ratio == 2) {
      s.pair_offset = l.pair_floats;
      l.pair_floats += int64_t{kPairRingRows} * 2 * l.head_dim;
    }
    l.sources.push_back(s);
  }
  l.snapshot_units = std::min(kSnapshotUnitsMax, snapshot_bytes / l.snapshot_unit_bytes());
  return l;
}

}  // namespace tensorfold
