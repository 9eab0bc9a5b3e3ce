// One tile of 16 rows x 32 (or 8) outputs of a bf16 product, by as many warps as it has segments
// (kernels/cuda/dense.h). Operands come straight from global memory, 16 bytes a lane.
#pragma once

#include "kernels/cuda/dense.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/rows.cuh"

namespace tensorfold::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kTileOuts = 32;
inline constexpr int kTileOutsLeast = 8;  // where there are few tiles: the same bits

// row_of(i): pointer to row i of the tile, or nullptr; called for i = lane / 4 and that + 8.
// w: [out][in] bf16; outputs first_out .. first_out + kOuts - 1. sum: [segments][16][kOuts] floats
// of shared memory. Afterwards (and after a barrier made here) tile_value() reads results.
template <int kOuts = kTileOuts, typename RowOf>
__device__ void tile_product(const uint16_t* w, int in, int out, int first_out, RowOf row_of,
                             float* sum) {
  constexpr int kNs = kOuts / 8;
  const int lane = lane_of(), segment = warp_of(), g = lane >> 2, c = lane & 3;
  const int chunks = in / kChunk, per = dense_segment_chunks(in);
  const int begin = segment * per, end = min(chunks, begin + per);
  const uint16_t* top = row_of(g);
  const uint16_t* bottom = row_of(g + 8);
  const uint16_t* outs[kNs];
  for (int n = 0; n < kNs; ++n) {
    const int o = first_out + n * 8 + g;
    outs[n] = o < out ? w + int64_t{o} * in + c * 8 : nullptr;
  }
  if (top != nullptr) top += c * 8;
  if (bottom != nullptr) bottom += c * 8;
  const uint4 zero = {0, 0, 0, 0};
  Sum d[kNs][4];
  struct Operands {
    uint4 a0, a1, b[kNs];
  };
  const auto load = [&](int k) {
    const int at = k * kChunk;
    Operands o;
    o.a0 = top != nullptr ? *reinterpret_cast<const uint4*>(top + at) : zero;
    o.a1 = bottom != nullptr ? *reinterpret_cast<const uint4*>(bottom + at) : zero;
#pragma unroll
    for (int n = 0; n < kNs; ++n)
      o.b[n] = outs[n] != nullptr ? __ldg(reinterpret_cast<const uint4*>(outs[n] + at)) : zero;
    return o;
  };
  constexpr int kAhead = kNs > 1 ? 3 : 6;  // chunks on their way
  Operands ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (begin + i < end) ahead[i] = load(begin + i);
#pragma unroll 1
  for (int from = begin; from < end; from += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (from + i >= end) break;
      const Operands now = ahead[i];
      if (from + i + kAhead < end) ahead[i] = load(from + i + kAhead);
#pragma unroll
      for (int n = 0; n < kNs; ++n) mma_chunk(d[n], now.a0, now.a1, now.b[n]);
    }
  }
  float* mine = sum + segment * kTileRows * kOuts;
#pragma unroll
  for (int n = 0; n < kNs; ++n) {
    const int o = n * 8 + c * 2;
    mine[g * kOuts + o] = d[n][0].total();
    mine[g * kOuts + o + 1] = d[n][1].total();
    mine[(g + 8) * kOuts + o] = d[n][2].total();
    mine[(g + 8) * kOuts + o + 1] = d[n][3].total();
  }
  __syncthreads();
}

// Element i (row i / kOuts, output i % kOuts) of the tile.
template <int kOuts = kTileOuts>
__device__ inline float tile_value(const float* sum, int segments, int i) {
  float v = sum[i];
  for (int s = 1; s < segments; ++s) v += sum[s * kTileRows * kOuts + i];
  return v;
}

inline int tile_shared_bytes(int in) {
  return dense_segments(in) * kTileRows * kTileOuts * static_cast<int>(sizeof(float));
}

}  // namespace tensorfold::cuda
