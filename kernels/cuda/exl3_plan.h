// How an EXL3 product of generated rows is cut, as pure functions of shapes and of the GPU. No cut
// changes a bit: a block's product is an exact integer and blocks are added as integers
// (exl3_fixed.cuh), so tiles, ranks and warps are chosen for speed alone, for the rows of the call
// too.
//
// The inputs are blocks of 128. A cluster of `cluster` thread blocks owns 128 outputs and shares
// the input blocks out in rank order. Few rows (up to kExl3FewRows): a thread block's warps take
// steps of 64 outputs by one block in turn; codes come through a ring of `depth` units (64 by 64)
// for each warp.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace tensorfold::cuda {

inline constexpr int kExl3ClusterMax = 8;
inline constexpr int kExl3FewRows = 8;      // rows of a thread block of the kernel of few rows
inline constexpr int kExl3SumStride = 136;  // integers of a row of sums: no bank conflicts
inline constexpr int kExl3DepthMax = 8;     // units of a warp's ring
inline constexpr int kExl3SmallWarps = 8;   // two thread blocks of these fit a multiprocessor
inline constexpr int kExl3LargeWarps = 16;

// What a plan knows of a GPU.
struct Exl3Gpu {
  int multiprocessors = 0;
  int block_bytes_max = 0;  // shared memory that one thread block may have
  int sm_bytes = 0;         // of a multiprocessor
  int major = 0;            // of its compute capability
};

// The products of one launch: same input blocks and bits.
struct Exl3DenseShape {
  int blocks = 0;   // padded_in / 128
  int columns = 0;  // sum of padded_out / 128
  int bits = 0;
  int rows = 0;  // of a thread block, 1 .. kExl3FewRows
};

struct Exl3DensePlan {
  int blocks = 0;
  int cluster = 1;     // thread blocks that share 128 outputs
  int cta_blocks = 0;  // input blocks of one of them; the last has what remains
  int warps = 0;
  int depth = 0;    // units of a warp's ring; 0: does not fit
  int columns = 1;  // at most, of a thread block one after the other (cluster 1 only)
  int on_sm = 1;    // thread blocks that fit a multiprocessor
};

// Where a thread block's parts lie in shared memory, in bytes.
struct Exl3DenseShared {
  int stride = 0;  // of a column of row bytes
  int ring = 0, q = 0, scale = 0, sums = 0, parts = 0, top = 0, barriers = 0, exchange = 0,
      bytes = 0;
};

constexpr Exl3DenseShared exl3_dense_shared(const Exl3DensePlan& p, int bits, int rows) {
  Exl3DenseShared s;
  s.stride = p.cta_blocks * 128 + 64;
  s.q = p.warps * p.depth * bits * 512;
  s.scale = s.q + 2 * rows * s.stride;
  s.sums = (s.scale + rows * p.cta_blocks * 8 + 15) / 16 * 16;
  s.parts = s.sums + (p.columns > 1 ? 2 : 1) * rows * kExl3SumStride * 4;
  const int parts = p.cluster == 1 ? 0 : (rows + p.cluster - 1) / p.cluster * p.cluster;
  s.top = s.parts + parts * 128 * 4;
  s.barriers = s.top + (p.cluster + 1) * kExl3FewRows * 4;
  s.exchange = s.barriers + p.warps * kExl3DepthMax * 8;  // two barriers of the cluster
  s.bytes = s.exchange + 16;
  return s;
}

// Clusters that a GPU runs at once: graphics clusters of about 16 multiprocessors, in pairs.
constexpr int exl3_clusters_at_once(int multiprocessors, int cluster) {
  const int groups = (multiprocessors + 17) / 18;
  const int size = multiprocessors / groups / 2 * 2;
  const int larger = (multiprocessors - size * groups) / 2;
  const int all = larger * ((size + 2) / cluster) + (groups - larger) * (size / cluster);
  return all > 0 ? all : 1;
}

constexpr Exl3DensePlan exl3_dense_cut(int blocks, int cluster) {
  Exl3DensePlan p;
  p.blocks = blocks;
  if (cluster > blocks) cluster = blocks;
  p.cta_blocks = (blocks + cluster - 1) / cluster;
  p.cluster = (blocks + p.cta_blocks - 1) / p.cta_blocks;
  return p;
}

// Warps and ring of a cut: two small thread blocks a multiprocessor (the next kernel's weights come
// while this one multiplies) where three units a warp or all that it needs fit, else one large one,
// else one small one. depth 0: nothing fits.
constexpr Exl3DensePlan exl3_dense_ring(Exl3DensePlan p, const Exl3DenseShape& s,
                                        const Exl3Gpu& gpu) {
  const int unit = s.bits * 512, half = gpu.sm_bytes / 2 - 1024;
  const struct {
    int warps, bytes, least;
  } choices[] = {
      {kExl3SmallWarps, half < gpu.block_bytes_max ? half : gpu.block_bytes_max, 3},
      {kExl3LargeWarps, gpu.block_bytes_max, 2},
      {kExl3SmallWarps, gpu.block_bytes_max, 1},
  };
  for (const auto& c : choices) {
    p.warps = c.warps;
    p.depth = 0;
    const int fixed = exl3_dense_shared(p, s.bits, s.rows).bytes;
    const int needed = 2 * ((2 * p.cta_blocks * p.columns + c.warps - 1) / c.warps);
    int depth = c.bytes > fixed ? (c.bytes - fixed) / (unit * c.warps) : 0;
    if (depth > needed) depth = needed;
    if (depth > kExl3DepthMax) depth = kExl3DepthMax;
    if (depth < c.least && depth < needed) continue;
    p.depth = depth;
    p.on_sm = c.bytes == half ? 2 : 1;
    return p;
  }
  p.depth = 0;
  return p;
}

// The same with `blocks` thread blocks a multiprocessor, as they come in practice: of three and
// more the last few find no place together.
constexpr int exl3_clusters_in_time(int multiprocessors, int cluster, int blocks) {
  const int all = blocks * exl3_clusters_at_once(multiprocessors, cluster);
  return cluster < 3 ? all : all * 95 / 100;
}

// The quickest of the cuts that fit, by what a multiprocessor takes for a block of inputs with one
// small thread block, with two (which do half as much again in a time) or with a large one, for a
// start and for an exchange. `cluster` > 0 asks for that size.
constexpr Exl3DensePlan exl3_dense_plan(const Exl3DenseShape& s, const Exl3Gpu& gpu,
                                        int cluster = 0) {
  constexpr int kOne = 16, kTwo = 20, kLarge = 10, kStart = 60, kExchange = 15;
  Exl3DensePlan best;
  int64_t best_cost = -1;
  for (int size = 1; size <= kExl3ClusterMax; ++size) {
    if (cluster > 0 && size != cluster) continue;
    Exl3DensePlan p = exl3_dense_cut(s.blocks, size);
    const int at_once = exl3_clusters_at_once(gpu.multiprocessors, p.cluster);
    const int alone = (s.columns + at_once - 1) / at_once;
    p.columns = p.cluster == 1 ? alone : 1;
    p = exl3_dense_ring(p, s, gpu);
    if (p.depth == 0) continue;
    const bool two = p.on_sm == 2 && s.columns > at_once;
    const int twice = exl3_clusters_in_time(gpu.multiprocessors, p.cluster, 2);
    const int waves = two ? (s.columns + twice - 1) / twice : alone;
    const int starts = p.columns > 1 ? 1 : waves;
    const int each = p.warps == kExl3LargeWarps ? kLarge : two ? kTwo : kOne;
    const int64_t cost =
        int64_t{waves} * p.cta_blocks * each + starts * kStart + (p.cluster > 1 ? kExchange : 0);
    if (best_cost >= 0 && cost >= best_cost) continue;
    best = p;
    best_cost = cost;
  }
  return best;
}

// The same by groups of four warps (exl3_few_group.cu): a group takes steps of 128 outputs by one
// block, codes come in stages of a step. depth: stages of a group.
inline constexpr int kExl3GroupStagesMax = 4;
inline constexpr int kExl3GroupWarps = 4;
inline constexpr int kExl3GroupColumnsMax =
    2;  // output blocks a multiprocessor; more: single warps

constexpr Exl3DenseShared exl3_group_shared(const Exl3DensePlan& p, int bits, int rows) {
  Exl3DenseShared s;
  s.q = p.warps / kExl3GroupWarps * p.depth * bits * 2048;
  s.stride = p.cta_blocks * 128 + 64;
  s.scale = s.q + 2 * rows * s.stride;
  s.sums = (s.scale + rows * p.cta_blocks * 8 + 15) / 16 * 16;
  s.parts = s.sums + (p.columns > 1 ? 2 : 1) * rows * kExl3SumStride * 4;
  const int parts = p.cluster == 1 ? 0 : (rows + p.cluster - 1) / p.cluster * p.cluster;
  s.top = s.parts + parts * 128 * 4;
  s.barriers = s.top + (p.cluster + 1) * kExl3FewRows * 4;
  s.exchange = s.barriers + p.warps / kExl3GroupWarps * 2 * kExl3GroupStagesMax * 8;
  s.bytes = s.exchange + 16;
  return s;
}

// `warps` > 0 asks for that many.
// With `warps` in a thread block of at most `bytes`.
constexpr Exl3DensePlan exl3_group_ring(Exl3DensePlan p, const Exl3DenseShape& s, int warps,
                                        int bytes) {
  constexpr int kStaticBytes = 1024;  // more than the kernel has of its own
  p.warps = warps;
  p.depth = 0;
  const int groups = warps / kExl3GroupWarps;
  const int fixed = exl3_group_shared(p, s.bits, s.rows).bytes + kStaticBytes;
  const int needed = (p.cta_blocks * p.columns + groups - 1) / groups;
  int depth = bytes > fixed ? (bytes - fixed) / (groups * s.bits * 2048) : 0;
  if (depth > needed) depth = needed;
  if (depth > kExl3GroupStagesMax) depth = kExl3GroupStagesMax;
  if (depth >= 2 || depth == needed) p.depth = depth;
  return p;
}

// depth 0: none fits (many blocks for one thread block's rows). Costs of a block of inputs: a
// thread block of 20 warps alone on a multiprocessor (where the kernel may have as many registers
// as that leaves), one of 12 or fewer, two of these. `cluster`, `warps` > 0 ask for those.
constexpr Exl3DensePlan exl3_group_plan(const Exl3DenseShape& s, const Exl3Gpu& gpu,
                                        int cluster = 0, int warps = 0) {
  constexpr int kLarge = 13, kOne = 16, kTwo = 20, kStart = 60, kExchange = 15;
  constexpr int kLeastOfLarge = 16;  // warps
  const int half = gpu.sm_bytes / 2 - 1024, most = gpu.block_bytes_max;
  Exl3DensePlan best;
  int64_t best_cost = -1;
  for (int size = 1; size <= kExl3ClusterMax; ++size) {
    if (cluster > 0 && size != cluster) continue;
    for (const int count : {24, 20, 16, 12, 8, 4}) {
      if (warps > 0 ? count != warps : count == 24 || count == 16) continue;
      const bool large = count >= kLeastOfLarge;
      if (large && gpu.major != 9) continue;
      for (int on_sm = large ? 1 : 2; on_sm >= 1; --on_sm) {
        Exl3DensePlan p = exl3_dense_cut(s.blocks, size);
        const int slots = exl3_clusters_in_time(gpu.multiprocessors, p.cluster, on_sm);
        p.columns = p.cluster == 1 ? (s.columns + slots - 1) / slots : 1;
        p.on_sm = on_sm;
        p = exl3_group_ring(p, s, count, on_sm == 2 ? half : most);
        if (p.depth == 0) continue;
        const int waves = (s.columns + slots - 1) / slots;
        const bool two = on_sm == 2 && 2 * s.columns > slots;
        const int each = large ? kLarge : two ? kTwo : kOne;
        const int starts = p.columns > 1 ? 1 : waves;
        // Fewer warps take as much longer.
        const int64_t cost = int64_t{waves} * p.cta_blocks * each * (count < 12 ? 12 / count : 1) +
                             starts * kStart + (p.cluster > 1 ? kExchange : 0);
        if (best_cost >= 0 && cost >= best_cost) continue;
        best = p;
        best_cost = cost;
      }
    }
  }
  return best;
}

// Whether some cut of a weight fits a GPU, whatever the rows of a call.
constexpr bool exl3_dense_fits(int padded_in, int padded_out, int shared_bytes_max) {
  const Exl3DenseShape s{padded_in / 128, padded_out / 128, 6, kExl3FewRows};
  return exl3_dense_plan(s, {132, shared_bytes_max, shared_bytes_max + 1024}).depth > 0;
}

// Right shift that keeps the sum of `blocks` contributions inside 32 bits (exl3_fixed.cuh).
constexpr int exl3_sum_shift(int blocks) {
  int shift = 0;
  while ((int64_t{2} << shift) < blocks) ++shift;
  return shift;
}

}  // namespace tensorfold::cuda
