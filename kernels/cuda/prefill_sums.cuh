// The end of a class P tile whose sums lie in a warpgroup's registers (compute capability 9.0):
// through shared memory to outputs, with the Hadamard; and where a step's codes lie.
#pragma once

#include "kernels/cuda/exl3_dense.h"
#include "kernels/cuda/exl3_prefill.cuh"

namespace tensorfold::cuda {

// Codes of one step of a strip of 64 outputs.
__device__ __forceinline__ const std::byte* step_codes(const Exl3Parts& w, int strip, int step) {
  const int64_t unit = int64_t{strip} * (w.padded_in / 64) + step;
  return static_cast<const std::byte*>(w.trellis) + unit * (w.half_bits * 256);
}

// Sums of rows [first, first + kRows) of a tile into shared memory, a row every `stride` floats:
// this warp's 16 outputs, the Hadamard's step of 8 done.
template <int TN, int kRows>
__device__ __forceinline__ void store_sums(const float (&d)[TN / 2], int first, int stride,
                                           int lane, float* sums) {
  float* to = sums + 2 * (lane & 3) * stride + (lane >> 2);
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    const int i = 4 * (first / 8 + j);
    if (i >= TN / 2) break;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float low = d[i + row], high = d[i + row + 2];
      to[(8 * j + row) * stride] = low + high;
      to[(8 * j + row) * stride + 8] = low - high;
    }
  }
}

__device__ __forceinline__ void butterfly(float& a, float& b) {
  const float sum = a + b;
  b = a - b;
  a = sum;
}

// The rest of the Hadamard of a row's 128 sums, by four lanes: lane q has sums 8 q + 32 b + (0..7).
__device__ __forceinline__ void transform_sums(float (&v)[4][8], int q) {
#pragma unroll
  for (int b = 0; b < 4; ++b)
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if ((i & step) == 0) butterfly(v[b][i], v[b][i + step]);
  const float sign = (q & 2) != 0 ? -1.0f : 1.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    butterfly(v[0][i], v[1][i]);
    butterfly(v[2][i], v[3][i]);
    butterfly(v[0][i], v[2][i]);
    butterfly(v[1][i], v[3][i]);
#pragma unroll
    for (int b = 0; b < 4; ++b)
      v[b][i] = fmaf(v[b][i], sign, __shfl_xor_sync(0xffffffffu, v[b][i], 2));
  }
}

// Sums `from` + 8 q + 32 b + (0..7) of a row.
__device__ __forceinline__ void load_sums(const float* from, float (&v)[4][8]) {
#pragma unroll
  for (int b = 0; b < 4; ++b)
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float4 s = *reinterpret_cast<const float4*>(from + 32 * b + i);
      v[b][i] = s.x;
      v[b][i + 1] = s.y;
      v[b][i + 2] = s.z;
      v[b][i + 3] = s.w;
    }
}

// Eight neighbouring outputs of a row from v, scaled.
__device__ __forceinline__ void store_outputs(const Exl3DenseJob& job, int64_t row, int at,
                                              const float (&v)[8]) {
  float scale[2][4], y[8];
  load_half4(job.weight.svh + at, scale[0]);
  load_half4(job.weight.svh + at + 4, scale[1]);
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = v[i] * kHadamard128Scale * scale[i / 4][i % 4];
  const int64_t to = row * job.y_stride + at;
  if (job.type == ValueType::kF32) {
    float* out = static_cast<float*>(job.y) + to;
    if (at + 8 <= job.out && (reinterpret_cast<uintptr_t>(out) & 15) == 0) {
      reinterpret_cast<float4*>(out)[0] = make_float4(y[0], y[1], y[2], y[3]);
      reinterpret_cast<float4*>(out)[1] = make_float4(y[4], y[5], y[6], y[7]);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (at + i < job.out) out[i] = y[i];
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(job.y) + to;
  uint32_t two[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) two[i] = bf16_bits(y[2 * i]) | bf16_bits(y[2 * i + 1]) << 16;
  if (at + 8 <= job.out && (reinterpret_cast<uintptr_t>(out) & 15) == 0) {
    *reinterpret_cast<uint4*>(out) = make_uint4(two[0], two[1], two[2], two[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (at + i < job.out) out[i] = static_cast<uint16_t>(two[i / 2] >> (16 * (i % 2)));
}

}  // namespace tensorfold::cuda
