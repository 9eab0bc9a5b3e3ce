// Class D products of more than a few rows: the rows are rotated and quantised once by a kernel of
// their own, then every 128 outputs are decoded once for 32 or 64 rows. Same bits as for few rows
// (exl3_fixed.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/exl3_dense.h"
#include "kernels/cuda/exl3_plan.h"

namespace tensorfold::cuda {

inline constexpr int kExl3ManyTile = 32;      // rows of a tile of the workspace
inline constexpr int kExl3ManyStagesMax = 8;  // blocks of inputs under way
inline constexpr int kExl3ManyWarps = 8;
inline constexpr int kExl3ManyThreads = 32 * kExl3ManyWarps;

inline constexpr int kExl3ManyWideBytes = 200 * 1024;  // shared memory from which 64 rows are taken

// Bytes of the workspace for one weight: high and low bytes of the rows, tile by tile, then
// FixedBlock [rows][blocks].
constexpr int64_t exl3_many_bytes(int rows, int padded_in) {
  const int64_t tiled = (rows + kExl3ManyTile - 1) / kExl3ManyTile * kExl3ManyTile;
  return (tiled * 2 * padded_in + tiled * (padded_in / 128) * 8 + 255) / 256 * 256;
}

struct Exl3ManyPlan {
  int blocks = 0;
  int cluster = 1;
  int cta_blocks = 0;
  int tile_rows = 0;  // of a thread block: 32 or 64
  int stages = 0;     // 0: does not fit
};

// Where a thread block's parts lie in shared memory, in bytes.
struct Exl3ManyShared {
  int stage = 0;  // bytes of one: rows, then codes
  int ratios = 0, sums = 0, parts = 0, scales = 0, barriers = 0, bytes = 0;
};

constexpr Exl3ManyShared exl3_many_shared(const Exl3ManyPlan& p, int bits) {
  Exl3ManyShared s;
  s.stage = p.tile_rows * 256 + bits * 2048;
  s.ratios = p.stages * s.stage;
  s.sums = s.ratios + p.tile_rows * p.cta_blocks * 8;
  s.parts = s.sums + p.tile_rows * kExl3SumStride * 4;
  const int parts = p.cluster == 1 ? 0 : (p.tile_rows + p.cluster - 1) / p.cluster * p.cluster;
  s.scales = s.parts + parts * 512;
  s.barriers = s.scales + p.tile_rows * 4;
  s.bytes = s.barriers + (2 * kExl3ManyStagesMax + 1) * 8;
  return s;
}

// `columns`: output blocks of all weights of the launch.
constexpr Exl3ManyPlan exl3_many_plan(int blocks, int columns, int bits, int rows,
                                      const Exl3Gpu& gpu, int cluster = 0) {
  constexpr int kStartSteps = 3, kExchangeSteps = 1;
  Exl3ManyPlan best;
  int64_t best_cost = -1;
  for (int size = 1; size <= kExl3ClusterMax; ++size) {
    if (cluster > 0 && size != cluster) continue;
    for (const int tile : {32, 64}) {
      if (tile == 64 && (rows <= 32 || gpu.block_bytes_max < kExl3ManyWideBytes)) continue;
      const Exl3DensePlan cut = exl3_dense_cut(blocks, size);
      Exl3ManyPlan p{blocks, cut.cluster, cut.cta_blocks, tile, 0};
      const int fixed = exl3_many_shared(p, bits).bytes;
      const Exl3ManyShared one = exl3_many_shared(p, bits);
      // Two thread blocks of 32 rows a multiprocessor where three stages fit so.
      const int half = gpu.sm_bytes / 2 - 1024;
      int stages = tile == 32 && half > fixed ? (half - fixed) / one.stage : 0;
      if (stages < 3 && gpu.block_bytes_max > fixed)
        stages = (gpu.block_bytes_max - fixed) / one.stage;
      if (stages > kExl3ManyStagesMax) stages = kExl3ManyStagesMax;
      if (stages > p.cta_blocks) stages = p.cta_blocks;
      if (stages < 2 && stages < p.cta_blocks) continue;
      p.stages = stages;
      const int at_once = exl3_clusters_at_once(gpu.multiprocessors, p.cluster);
      const int64_t tiles = int64_t{columns} * ((rows + tile - 1) / tile);
      const int64_t waves = (tiles + at_once - 1) / at_once;
      // A block of 64 rows takes about one and a half times as long as one of 32.
      const int64_t cost = waves * (p.cta_blocks + kStartSteps) * (tile == 64 ? 3 : 2) +
                           (p.cluster > 1 ? kExchangeSteps : 0);
      if (best_cost >= 0 && cost >= best_cost) continue;
      best = p;
      best_cost = cost;
    }
  }
  return best;
}

// Weights of the same input size; `workspace` has `jobs` times exl3_many_bytes.
struct Exl3ManyArgs {
  int rows = 0, jobs = 0, columns = 0;
  int shift = 0;  // exl3_sum_shift
  int64_t job_bytes = 0;
  uint8_t* workspace = nullptr;
  Exl3ManyPlan plan;
  Exl3ManyShared layout;
  int first_column[kExl3JobsMax + 1] = {};
  Exl3DenseJob job[kExl3JobsMax];
};

// Rotation, then products. `bits`: the largest of the jobs'.
cudaError_t exl3_many(Exl3ManyArgs& args, int bits, const Exl3Gpu& gpu, int cluster,
                      cudaStream_t stream);

}  // namespace tensorfold::cuda
