// How an EXL3 product is cut, as pure functions of the weight's shape and of the GPU: never of the
// row count, so that a row's sum has one order whatever rows share the call (class D of
// docs/architecture.md).
//
// The inputs are blocks of 128. A cluster of `cluster` thread blocks owns 128 outputs and shares
// the blocks out in rank order; each takes its blocks as chunks of `chunk_blocks`. A chunk's blocks
// are added in ascending order, then a thread block's chunks, then the cluster's ranks.
#pragma once

#include <cstdint>

namespace tensorfold::cuda {

inline constexpr int kExl3ClusterMax = 8;
inline constexpr int kExl3ChunksMax = 10;     // of one thread block, when each is one block
inline constexpr int kExl3LongChunksMax = 8;  // of one thread block, else
inline constexpr int kExl3RowsPerBlock = 8;   // rows of a thread block at most
inline constexpr int kExl3SumStride = 136;    // floats of a row of sums: no bank conflicts

struct Exl3DensePlan {
  int blocks = 0;        // padded_in / 128
  int cluster = 1;       // thread blocks that share an output block
  int cta_blocks = 0;    // input blocks of one of them; the last has what remains
  int chunk_blocks = 0;  // input blocks of a chunk
  int chunks = 0;        // of one thread block
};

// Where a thread block's parts lie in shared memory, in bytes.
struct Exl3DenseShared {
  int stride = 0;  // of a column of row bytes
  int q = 0, scale = 0, sums = 0, parts = 0, bytes = 0;
};

constexpr Exl3DenseShared exl3_dense_shared(const Exl3DensePlan& p, int rows) {
  Exl3DenseShared s;
  s.stride = p.cta_blocks * 128 + 64;
  s.scale = 2 * rows * s.stride;
  s.sums = (s.scale + rows * p.cta_blocks * 8 + 15) / 16 * 16;
  s.parts = s.sums + p.chunks * rows * kExl3SumStride * 4;
  s.bytes = s.parts + rows * 128 * 4;
  return s;
}

constexpr Exl3DensePlan exl3_dense_cut(int blocks, int cluster) {
  Exl3DensePlan p;
  p.blocks = blocks;
  if (cluster > blocks) cluster = blocks;
  p.cta_blocks = (blocks + cluster - 1) / cluster;
  p.cluster = (blocks + p.cta_blocks - 1) / p.cta_blocks;
  const int chunks = p.cta_blocks <= kExl3ChunksMax ? p.cta_blocks : kExl3LongChunksMax;
  p.chunk_blocks = (p.cta_blocks + chunks - 1) / chunks;
  p.chunks = (p.cta_blocks + p.chunk_blocks - 1) / p.chunk_blocks;
  return p;
}

// Output blocks alone fill 132 multiprocessors from about 96 on; fewer are shared by a cluster, so
// that a warp's part is one chunk of one or two blocks. A cluster grows until a thread block fits
// the GPU's shared memory; where none does, exl3_dense_fits is false.
constexpr Exl3DensePlan exl3_dense_plan(int padded_in, int padded_out, int shared_bytes_max) {
  const int blocks = padded_in / 128, columns = padded_out / 128;
  int cluster = columns >= 96 ? 1 : columns >= 52 ? 2 : columns >= 24 ? 4 : kExl3ClusterMax;
  Exl3DensePlan p = exl3_dense_cut(blocks, cluster);
  while (cluster < kExl3ClusterMax &&
         exl3_dense_shared(p, kExl3RowsPerBlock).bytes > shared_bytes_max) {
    cluster *= 2;
    p = exl3_dense_cut(blocks, cluster);
  }
  return p;
}

constexpr bool exl3_dense_fits(int padded_in, int padded_out, int shared_bytes_max) {
  const Exl3DensePlan p = exl3_dense_plan(padded_in, padded_out, shared_bytes_max);
  return exl3_dense_shared(p, kExl3RowsPerBlock).bytes <= shared_bytes_max;
}

}  // namespace tensorfold::cuda
