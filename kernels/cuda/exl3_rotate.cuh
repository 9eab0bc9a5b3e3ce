// Rotation of input rows: a block of 128 values times suh, Hadamard, on one warp.
#pragma once

#include "kernels/cuda/exl3_step.cuh"
#include "kernels/cuda/numbers.cuh"

namespace tensorfold::cuda {

// Four consecutive fp16 values as fp32.
__device__ __forceinline__ void load_half4(const uint16_t* p, float (&v)[4]) {
  const uint2 u = __ldg(reinterpret_cast<const uint2*>(p));
  const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&u.x));
  const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&u.y));
  v[0] = a.x;
  v[1] = a.y;
  v[2] = b.x;
  v[3] = b.y;
}

// Four consecutive values of a row of `in`, zeros behind it.
__device__ __forceinline__ void load_row4(const uint16_t* x, int in, int k, float (&v)[4]) {
  if (k + 4 <= in) {
    const uint2 u = *reinterpret_cast<const uint2*>(x + k);
    v[0] = bf16_low(u.x);
    v[1] = bf16_high(u.x);
    v[2] = bf16_low(u.y);
    v[3] = bf16_high(u.y);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    v[i] = k + i < in ? __uint_as_float(static_cast<uint32_t>(x[k + i]) << 16) : 0.0f;
}

// This lane's four values of block `block` of the rotated row: H (x * suh) / sqrt(128).
__device__ __forceinline__ void rotated_block(const uint16_t* x, int in, const uint16_t* suh,
                                              int block, int lane, float (&v)[4]) {
  const int k = block * 128 + 4 * lane;
  float scale[4];
  load_half4(suh + k, scale);
  load_row4(x, in, k, v);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= scale[i];
  hadamard_block(v, lane);
}

}  // namespace tensorfold::cuda
