// A chunk of the inputs of a MoE's matrix: 64 outputs by blocks of 128 inputs for a warp, codes and
// rows on their way to registers while the block before is multiplied (exl3_step.cuh).
#pragma once

#include "kernels/cuda/exl3_step.cuh"

namespace tensorfold::cuda {

// What a lane holds of a chunk: outputs 16 i + g + 8 h (g = lane / 4) of rows 4 rg + lane % 4;
// shift is used inside run().
template <int RG>
struct MoeChunkSums {
  float v[RG][4][2];
  float shift[RG];
  __device__ __forceinline__ float& at(int rg, int i, int h) { return v[rg][i][h]; }
};

// Where a lane finds its rows at the start of a chunk, in shared or global memory. Lane (c, t) with
// c = lane / 4, t = lane % 4 reads column c of a group (row 4 rg + c / 2, high or low byte) from
// input 16 t on, and the scales of row 4 rg + t. Rows that are not there point at any that is.
template <int RG>
struct MoeLaneRows {
  const uint8_t* q[RG];     // advances by 128 bytes a block
  const float2* scale[RG];  // scale and shift of each block
};

// A chunk of blocks of 128 inputs by 64 outputs. start() begins the first loads, so that they run
// while the caller prepares the rows; run() adds the blocks in ascending order.
template <int K, int RG>
struct MoeChunk {
  UnitWords<K> a, b;

  // `w`: the lane's first piece of the chunk (a strip's units are contiguous along the inputs).
  __device__ __forceinline__ void start(const uint4* w) {
    a.load(w);
    b.load(w + K * 32);
  }

  __device__ __forceinline__ void run(const uint4* w, int count, const MoeLaneRows<RG>& rows,
                                      int lane, MoeChunkSums<RG>& out) {
    uint4 xa[RG], xb[RG];
    float2 scale[RG];
#pragma unroll
    for (int rg = 0; rg < RG; ++rg) {
      xa[rg] = *reinterpret_cast<const uint4*>(rows.q[rg]);
      xb[rg] = *reinterpret_cast<const uint4*>(rows.q[rg] + 64);
      scale[rg] = rows.scale[rg][0];
      out.shift[rg] = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) out.at(rg, i, 0) = out.at(rg, i, 1) = 0;
    }
#pragma unroll 1
    for (int block = 0; block < count; ++block) {
      int acc[RG][4][4];
#pragma unroll
      for (int rg = 0; rg < RG; ++rg)
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) acc[rg][i][j] = 0;
      const bool more = block + 1 < count;
      const int next = (block + 1) * 128;
      w += 2 * K * 32;
      unit_product<K, RG>(a, xa, lane, acc);
      if (more) {
        a.load(w);
#pragma unroll
        for (int rg = 0; rg < RG; ++rg) xa[rg] = *reinterpret_cast<const uint4*>(rows.q[rg] + next);
      }
      unit_product<K, RG>(b, xb, lane, acc);
      if (more) {
        b.load(w + K * 32);
#pragma unroll
        for (int rg = 0; rg < RG; ++rg)
          xb[rg] = *reinterpret_cast<const uint4*>(rows.q[rg] + next + 64);
      }
#pragma unroll
      for (int rg = 0; rg < RG; ++rg) {
        const float2 s = scale[rg];
        if (more) scale[rg] = rows.scale[rg][block + 1];
        out.shift[rg] += s.y;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const float high = static_cast<float>(acc[rg][i][2 * h]);
            const float both = fmaf(high, 256.0f, static_cast<float>(acc[rg][i][2 * h + 1]));
            out.at(rg, i, h) = fmaf(s.x, both, out.at(rg, i, h));
          }
      }
    }
#pragma unroll
    for (int rg = 0; rg < RG; ++rg)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) out.at(rg, i, h) -= out.shift[rg];
  }
};

}  // namespace tensorfold::cuda
