// CacheLayout: where everything of the cache lies, computed once from the model's dimensions.
//
// A pool block holds the global entries of kBlockPositions positions of one sequence: for each KV
// source, kBlockPositions / ratio main entries, then as many index keys. Rings belong to a
// sequence: a window ring per layer and per drafter stage, and for ratio-2 sources the compressor
// inputs of the last kPairRingRows positions. Formats: kernels/formats.h.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/status.h"
#include "engine/model/config.h"
#include "engine/sched/step_plan.h"
#include "kernels/attention.h"

namespace tensorfold {

inline constexpr int kCacheSlotsMax = kSequencesMax;
inline constexpr int64_t kCacheContextMax = int64_t{1} << 24;  // positions per sequence
inline constexpr int64_t kPoolBlocksMax = int64_t{1} << 22;
inline constexpr int64_t kSnapshotUnitsMax = 16384;

struct CacheSource {
  int layer = 0;
  int ratio = 1;
  int32_t entries_per_block = 0;
  int64_t main_offset = 0;  // bytes into a block
  int64_t index_offset = 0;
  int64_t pair_offset = -1;  // floats into a sequence's pair rings; -1: ratio 1 keeps none
};

struct CacheLayout {
  int slots = 0;
  int64_t context = 0;  // positions per sequence
  int64_t pool_blocks = 0;
  int head_dim = 0;
  int index_dim = 0;
  int layers = 0;
  int decoder_start = 0;  // rings below it are the encoder's
  int stages = 0;         // of the drafter
  int window = 0;
  int ring_rows = 0;        // window + kRingSpareRows
  int64_t ring_bytes = 0;   // one ring
  int64_t pair_floats = 0;  // pair rings of one sequence
  int64_t block_bytes = 0;
  int64_t snapshot_units = 0;        // of the snapshot store, one encoder snapshot each
  std::vector<CacheSource> sources;  // ascending by layer

  int rings() const { return layers + stages; }
  const CacheSource* source(int layer) const;  // nullptr: owns no entries
  int64_t bytes() const;                       // pool, rings of all slots, snapshots
  int64_t snapshot_unit_bytes() const;         // an encoder snapshot
  int32_t full_snapshot_units() const;         // of a snapshot with all rings
};

// context 0: the model's maximum. pool_blocks 0: what all slots need for their whole context.
// snapshot_bytes: of memory for snapshots; as many units as fit.
Result<CacheLayout> make_cache_layout(const ModelConfig& config, int slots, int64_t context,
                                      int64_t pool_blocks, int64_t snapshot_bytes = 0);

}  // namespace tensorfold
