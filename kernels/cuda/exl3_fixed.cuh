// Class D sums without an order: a row's product over all blocks of inputs as one 32-bit integer,
// so that no cut of the work can change a bit.
//
// A block of 128 rotated inputs is 16-bit integers q with a scale s = top / kQuantMax; its product
// with the codes' byte sums w is the exact integer c = sum (w - center) q, |c| < 2^31. A row's
// scale S is its largest s. The block contributes floor(c * R / 2^32), R = round(s / S * 2^(31 -
// shift)), with shift by the number of blocks so that the sum stays inside 32 bits; half a unit a
// block makes up for the floor. A unit is 2^(1 + shift) S; against a product's size it is less than
// 1e-6 (rows whose weight lies in one block: 3e-5).
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/exl3_dense.h"
#include "kernels/cuda/exl3_plan.h"
#include "kernels/cuda/exl3_rotate.cuh"

namespace tensorfold::cuda {

// What a block of a row leaves beside its integers.
struct alignas(8) FixedBlock {
  float scale;
  int center;  // -round(kMul1Center * sum of the integers)
};

__device__ __forceinline__ int fixed_center(int sum) {
  constexpr int kWhole = 510;
  constexpr float kPart = kMul1Center - 510.0f;
  return -kWhole * sum - __float2int_rn(kPart * static_cast<float>(sum));
}

// 1 / v to an ulp or so, without a branch; the same bits in every kernel.
__device__ __forceinline__ float fixed_reciprocal(float v) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
// What a block's values are multiplied by to become integers.
__device__ __forceinline__ float fixed_quant_inverse(float top) {
  return top < 1e-30f ? 0.0f : kQuantMax * fixed_reciprocal(top);
}

// This lane's four values of a block as integers; top_bits: of the block's largest size. A NaN or
// an infinity makes the row's scale, and with it every output of the row, one.
struct FixedQuant {
  int q[4];
  uint32_t top_bits;
  FixedBlock block;
};

__device__ __forceinline__ FixedQuant fixed_quantise(const float (&v)[4]) {
  FixedQuant out;
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) bits = max(bits, __float_as_uint(fabsf(v[i])));
  out.top_bits = __reduce_max_sync(0xffffffffu, bits);
  const float top = __uint_as_float(out.top_bits);
  const float inverse = fixed_quant_inverse(top);
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out.q[i] = __float2int_rn(v[i] * inverse);
    sum += out.q[i];
  }
  out.block.scale = top * (1.0f / kQuantMax);
  out.block.center = fixed_center(__reduce_add_sync(0xffffffffu, sum));
  return out;
}

// The row's scale from the bits of its largest value.
__device__ __forceinline__ float fixed_row_scale(uint32_t top_bits) {
  return __uint_as_float(top_bits) * (1.0f / kQuantMax);
}
// 1 / scale; what comes of a row of zeros is multiplied by zeros.
__device__ __forceinline__ float fixed_inverse(float row_scale) {
  return fixed_reciprocal(row_scale);
}

// c for the high and low bytes' products.
__device__ __forceinline__ int fixed_product(int high, int low, int center) {
  return static_cast<int>((static_cast<uint32_t>(high) << 8) + static_cast<uint32_t>(low) +
                          static_cast<uint32_t>(center));
}
// R; `one` = 2^(31 - shift).
__device__ __forceinline__ int fixed_ratio(float scale, float row_inverse, float one) {
  return __float2int_rn(scale * row_inverse * one);
}

// Four outputs of a row from their sums: rotation, svh, store. `svh`: this lane's four of them.
struct FixedOutput {
  float half_blocks;  // blocks / 2
  float unit;         // kMul1Slope * 2^(1 + shift)
};

__device__ __forceinline__ float fixed_power(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
}
__device__ __forceinline__ FixedOutput fixed_output(int blocks, int shift) {
  return {0.5f * static_cast<float>(blocks), kMul1Slope * fixed_power(1 + shift)};
}

__device__ __forceinline__ void fixed_finish(const Exl3DenseJob& job, int column, int64_t row,
                                             int lane, const int4& sum, float row_scale,
                                             const FixedOutput& o, uint2 svh) {
  float v[4] = {
      static_cast<float>(sum.x) + o.half_blocks, static_cast<float>(sum.y) + o.half_blocks,
      static_cast<float>(sum.z) + o.half_blocks, static_cast<float>(sum.w) + o.half_blocks};
  hadamard_block(v, lane);
  const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&svh.x));
  const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&svh.y));
  const float scale = row_scale * o.unit;
  v[0] *= scale * a.x;
  v[1] *= scale * a.y;
  v[2] *= scale * b.x;
  v[3] *= scale * b.y;
  const int n = column * 128 + 4 * lane;
  const int64_t at = row * job.y_stride + n;
  if (job.type == ValueType::kF32) {
    float* to = static_cast<float*>(job.y) + at;
    if (n + 4 <= job.out && (reinterpret_cast<uintptr_t>(to) & 15) == 0) {
      *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (n + i < job.out) to[i] = v[i];
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(job.y) + at;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (n + i < job.out) to[i] = static_cast<uint16_t>(to_bf16(v[i]));
}

}  // namespace tensorfold::cuda
