// One tile of 16 rows x 32 outputs of a bf16 product, by as many warps as the product has segments
// (kernels/cuda/dense.h). Operands come straight from global memory, 16 bytes a lane.
#pragma once

#include "kernels/cuda/dense.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/rows.cuh"

namespace tensorfold::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kTileOuts = 32;
inline constexpr int kTileNs = kTileOuts / 8;

// row_of(i): pointer to row i of the tile, or nullptr; called for i = lane / 4 and that + 8.
// w: [out][in] bf16; outputs first_out..first_out + 31. sum: [segments][16][32] floats of shared
// memory. Afterwards (and after a barrier made here) tile_value() reads results.
template <typename RowOf>
__device__ void tile_product(const uint16_t* w, int in, int out, int first_out, RowOf row_of,
                             float* sum) {
  const int lane = lane_of(), segment = warp_of(), g = lane >> 2, c = lane & 3;
  const int chunks = in / kChunk, per = dense_segment_chunks(in);
  const int begin = segment * per, end = min(chunks, begin + per);
  const uint16_t* top = row_of(g);
  const uint16_t* bottom = row_of(g + 8);
  const uint16_t* outs[kTileNs];
  for (int n = 0; n < kTileNs; ++n) {
    const int o = first_out + n * 8 + g;
    outs[n] = o < out ? w + int64_t{o} * in + c * 8 : nullptr;
  }
  if (top != nullptr) top += c * 8;
  if (bottom != nullptr) bottom += c * 8;
  const uint4 zero = {0, 0, 0, 0};
  Sum d[kTileNs][4];
#pragma unroll 4
  for (int k = begin; k < end; ++k) {
    const int at = k * kChunk;
    const uint4 a0 = top != nullptr ? *reinterpret_cast<const uint4*>(top + at) : zero;
    const uint4 a1 = bottom != nullptr ? *reinterpret_cast<const uint4*>(bottom + at) : zero;
#pragma unroll
    for (int n = 0; n < kTileNs; ++n) {
      const uint4 b =
          outs[n] != nullptr ? __ldg(reinterpret_cast<const uint4*>(outs[n] + at)) : zero;
      mma_chunk(d[n], a0, a1, b);
    }
  }
  float* mine = sum + segment * kTileRows * kTileOuts;
#pragma unroll
  for (int n = 0; n < kTileNs; ++n) {
    const int o = n * 8 + c * 2;
    mine[g * kTileOuts + o] = d[n][0].total();
    mine[g * kTileOuts + o + 1] = d[n][1].total();
    mine[(g + 8) * kTileOuts + o] = d[n][2].total();
    mine[(g + 8) * kTileOuts + o + 1] = d[n][3].total();
  }
  __syncthreads();
}

// Element i (row i / 32, output i % 32) of the tile.
__device__ inline float tile_value(const float* sum, int segments, int i) {
  float v = sum[i];
  for (int s = 1; s < segments; ++s) v += sum[s * kTileRows * kTileOuts + i];
  return v;
}

inline int tile_shared_bytes(int in) {
  return dense_segments(in) * kTileRows * kTileOuts * static_cast<int>(sizeof(float));
}

}  // namespace tensorfold::cuda
