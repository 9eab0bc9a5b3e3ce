// How EXL3 products of many generated rows are cut, and what lies where: pure functions of shapes
// and of the GPU (exl3_many.h). No cut changes a bit.
#pragma once

#include <cstdint>

#include "kernels/cuda/exl3_plan.h"

namespace tensorfold::cuda {

inline constexpr int kExl3ManyTile = 32;      // rows of a tile of the workspace
inline constexpr int kExl3ManyStagesMax = 8;  // blocks of inputs under way
inline constexpr int kExl3ManyWarps = 8;
inline constexpr int kExl3ManyThreads = 32 * kExl3ManyWarps;

inline constexpr int kExl3ManyBlocksMax = 1024;  // of the inputs

// Where the parts of a weight's workspace lie, in bytes: high and low bytes of the rows, tile by
// tile and in it block by block; (ratio, center) of the rows [tile][block][32]; scales of the rows.
struct Exl3ManyWorkspace {
  int64_t ratios = 0, scales = 0, bytes = 0;
};
constexpr Exl3ManyWorkspace exl3_many_workspace(int rows, int padded_in) {
  const int64_t tiled = (rows + kExl3ManyTile - 1) / kExl3ManyTile * kExl3ManyTile;
  Exl3ManyWorkspace w;
  w.ratios = tiled * 2 * padded_in;
  w.scales = w.ratios + tiled * (padded_in / 128) * 8;
  w.bytes = (w.scales + tiled * 4 + 255) / 256 * 256;
  return w;
}
constexpr int64_t exl3_many_bytes(int rows, int padded_in) {
  return exl3_many_workspace(rows, padded_in).bytes;
}

struct Exl3ManyPlan {
  int blocks = 0;
  int cluster = 1;
  int cta_blocks = 0;
  int stages = 0;  // 0: does not fit
};

// Where a thread block's parts lie in shared memory, in bytes.
struct Exl3ManyShared {
  int stage = 0;   // bytes of one: rows, codes, ratios
  int ratios = 0;  // in a stage
  int sums = 0, parts = 0, barriers = 0, bytes = 0;
};

constexpr Exl3ManyShared exl3_many_shared(const Exl3ManyPlan& p, int bits) {
  Exl3ManyShared s;
  s.ratios = kExl3ManyTile * 256 + bits * 2048;
  s.stage = s.ratios + 1024;
  s.sums = p.stages * s.stage;
  s.parts = s.sums + kExl3ManyTile * kExl3SumStride * 4;
  const int parts = p.cluster == 1 ? 0 : (kExl3ManyTile + p.cluster - 1) / p.cluster * p.cluster;
  s.barriers = s.parts + parts * 512;
  s.bytes = s.barriers + (2 * kExl3ManyStagesMax + 1) * 8;
  return s;
}

// `columns`: output blocks of all weights of the launch. Two thread blocks a multiprocessor where
// three stages fit so: they do half as much again in a time as one.
constexpr Exl3ManyPlan exl3_many_plan(int blocks, int columns, int bits, int rows,
                                      const Exl3Gpu& gpu, int cluster = 0) {
  constexpr int kOne = 15, kTwo = 20, kStart = 60, kExchange = 15;
  const int tiles = columns * ((rows + kExl3ManyTile - 1) / kExl3ManyTile);
  Exl3ManyPlan best;
  int64_t best_cost = -1;
  for (int size = 1; size <= kExl3ClusterMax; ++size) {
    if (cluster > 0 && size != cluster) continue;
    const Exl3DensePlan cut = exl3_dense_cut(blocks, size);
    Exl3ManyPlan p{blocks, cut.cluster, cut.cta_blocks, 0};
    const Exl3ManyShared shared = exl3_many_shared(p, bits);
    const int half = gpu.sm_bytes / 2 - 1024;
    int stages = half > shared.bytes ? (half - shared.bytes) / shared.stage : 0;
    const bool fits_two = stages >= 3;
    if (!fits_two)
      stages = gpu.block_bytes_max > shared.bytes
                   ? (gpu.block_bytes_max - shared.bytes) / shared.stage
                   : 0;
    if (stages > kExl3ManyStagesMax) stages = kExl3ManyStagesMax;
    if (stages > p.cta_blocks) stages = p.cta_blocks;
    if (stages < 2 && stages < p.cta_blocks) continue;
    p.stages = stages;
    const int at_once = exl3_clusters_at_once(gpu.multiprocessors, p.cluster);
    const bool two = fits_two && tiles > at_once;
    const int slots = two ? exl3_clusters_in_time(gpu.multiprocessors, p.cluster, 2) : at_once;
    const int64_t waves = (tiles + slots - 1) / slots;
    const int64_t cost =
        waves * (p.cta_blocks * (two ? kTwo : kOne) + kStart) + (p.cluster > 1 ? kExchange : 0);
    if (best_cost >= 0 && cost >= best_cost) continue;
    best = p;
    best_cost = cost;
  }
  return best;
}

}  // namespace tensorfold::cuda
