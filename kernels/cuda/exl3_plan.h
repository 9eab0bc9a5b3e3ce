// How an EXL3 product is cut, as pure functions of the weight's shape: never of the row count, so
// that a row's sum has one order whatever rows share the call (class D of docs/architecture.md).
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

struct Exl3DensePlan {
  int blocks = 0;        // padded_in / 128
  int cluster = 1;       // thread blocks that share an output block
  int cta_blocks = 0;    // input blocks of one of them; the last has what remains
  int chunk_blocks = 0;  // input blocks of a chunk
  int chunks = 0;        // of one thread block
};

// Output blocks alone fill 132 multiprocessors from about 96 on; fewer are shared by a cluster, so
// that a warp's part is one chunk of one or two blocks.
constexpr Exl3DensePlan exl3_dense_plan(int padded_in, int padded_out) {
  Exl3DensePlan p;
  p.blocks = padded_in / 128;
  const int columns = padded_out / 128;
  int cluster = columns >= 96 ? 1 : columns >= 52 ? 2 : columns >= 24 ? 4 : 8;
  if (cluster > p.blocks) cluster = p.blocks;
  p.cta_blocks = (p.blocks + cluster - 1) / cluster;
  p.cluster = (p.blocks + p.cta_blocks - 1) / p.cta_blocks;
  const int chunks = p.cta_blocks <= kExl3ChunksMax ? p.cta_blocks : kExl3LongChunksMax;
  p.chunk_blocks = (p.cta_blocks + chunks - 1) / chunks;
  p.chunks = (p.cta_blocks + p.chunk_blocks - 1) / p.chunk_blocks;
  return p;
}

}  // namespace tensorfold::cuda
