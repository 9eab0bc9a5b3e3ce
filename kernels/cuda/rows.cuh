// Row operations that several kernels share, in the orders of kernels/cpu/row_ops.h, so that equal
// inputs give equal bits there and here. A warp or a block works on one row in shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/numbers.cuh"

namespace tensorfold::cuda {

// The CPU's cascade: 32 running sums (element i goes to i mod 32) in runs of 16 steps, the runs'
// sums added level by level.
inline constexpr int kRunSteps = 16;
inline constexpr int kRunValues = 32 * kRunSteps;

struct Cascade {
  float level[3] = {};  // of whole runs
  int runs = 0;
  __device__ void add_run(float sum) {
    level[0] += sum;
    ++runs;
    if (runs % 16 == 0) {
      level[1] += level[0];
      level[0] = 0;
    }
    if (runs % 256 == 0) {
      level[2] += level[1];
      level[1] = 0;
    }
  }
  // rest: the sum of the run that is not whole, or 0.
  __device__ float total(float rest) const { return ((rest + level[0]) + level[1]) + level[2]; }
};

// 32 lanes' sums: those 8 apart ascending, then the 8 left ascending. Every lane gets the result.
__device__ inline float sum_columns(float lane_sum) {
  const int i = threadIdx.x & 7;
  float column = __shfl_sync(~0u, lane_sum, i) + __shfl_sync(~0u, lane_sum, 8 + i);
  column += __shfl_sync(~0u, lane_sum, 16 + i);
  column += __shfl_sync(~0u, lane_sum, 24 + i);
  float sum = __shfl_sync(~0u, column, 0);
  for (int k = 1; k < 8; ++k) sum += __shfl_sync(~0u, column, k);
  return sum;
}

__device__ inline int lane_of() { return static_cast<int>(threadIdx.x & 31); }
__device__ inline int warp_of() { return static_cast<int>(threadIdx.x >> 5); }

// ---------------------------------------------------------------- one warp, one row
// sum of f(i), i < n; n a multiple of 32.
template <typename F>
__device__ float warp_sum(int n, F f) {
  Cascade cascade;
  float run = 0;
  const int steps = n / 32;
  for (int s = 0; s < steps; ++s) {
    run += f(s * 32 + lane_of());
    if (s % kRunSteps == kRunSteps - 1) {
      cascade.add_run(run);
      run = 0;
    }
  }
  return sum_columns(cascade.total(run));
}

__device__ inline float inverse_rms(float sum_of_squares, int n, float eps) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(n) + eps);
}

// x = bf16(w * (x * rsqrt(mean(x^2) + eps))) in place; each lane touches its own elements only.
__device__ inline void warp_rms_norm(float* x, const float* w, int n, float eps) {
  const float inv = inverse_rms(warp_sum(n, [x](int i) { return x[i] * x[i]; }), n, eps);
  for (int i = lane_of(); i < n; i += 32) x[i] = round_bf16(w[i] * (x[i] * inv));
}

// Rotates the last rope_dim channels and rounds them to bf16; inverse: by the conjugate.
__device__ inline void warp_rotate(float* x, int n, int rope_dim, const float* table,
                                   bool inverse) {
  __syncwarp();
  float* v = x + n - rope_dim;
  for (int k = lane_of(); k < rope_dim / 2; k += 32) {
    const float c = table[2 * k], s = inverse ? -table[2 * k + 1] : table[2 * k + 1];
    const float re = v[2 * k], im = v[2 * k + 1];
    v[2 * k] = round_bf16(re * c - im * s);
    v[2 * k + 1] = round_bf16(re * s + im * c);
  }
  __syncwarp();
}

// ---------------------------------------------------------------- a block, one row
// sum of f(i), i < n, by all warps of the block. scratch: [n / 512 + 1][32] floats of shared
// memory. Every thread gets the result. The block must meet before and may go on after.
template <typename F>
__device__ float block_sum(int n, float* scratch, F f) {
  const int warps = static_cast<int>(blockDim.x >> 5);
  const int runs = n / kRunValues;
  for (int run = warp_of(); run <= runs; run += warps) {
    float sum = 0;
    const int end = min(n, (run + 1) * kRunValues);
    for (int i = run * kRunValues + lane_of(); i < end; i += 32) sum += f(i);
    scratch[run * 32 + lane_of()] = sum;
  }
  __syncthreads();
  Cascade cascade;
  for (int run = 0; run < runs; ++run) cascade.add_run(scratch[run * 32 + lane_of()]);
  const float sum = sum_columns(cascade.total(scratch[runs * 32 + lane_of()]));
  __syncthreads();
  return sum;
}
constexpr int block_sum_floats(int64_t n) { return static_cast<int>(n / kRunValues + 1) * 32; }

// e^x to within 0.51 units of the last place, rounded as the CPU's is in all but a few of a hundred
// cases: x = n ln 2 + r, e^r - 1 with its own error kept small, then 2^n in two factors.
__device__ inline float exp_near(float x) {
  x = x < -150.0f ? -150.0f : x;
  x = x > 130.0f ? 130.0f : x;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the integer
  const float n = fmaf(x, 1.44269502f, kMagic) - kMagic;
  float r = fmaf(n, -0x1.62e4p-1f, x);  // exact: 15 bits times a small integer
  r = fmaf(n, -0x1.7f7d1cp-20f, r);     // the rest of ln 2
  float q = 1.0f / 40320.0f;
  q = fmaf(q, r, 1.0f / 5040.0f);
  q = fmaf(q, r, 1.0f / 720.0f);
  q = fmaf(q, r, 1.0f / 120.0f);
  q = fmaf(q, r, 1.0f / 24.0f);
  q = fmaf(q, r, 1.0f / 6.0f);
  q = fmaf(q, r, 0.5f);
  const float square = r * r, rest = fmaf(r, r, -square);
  const float y = (r + fmaf(square, q, rest * q)) + 1.0f;
  const int k = static_cast<int>(n), k1 = k >> 1, k2 = k - k1;
  return (y * __int_as_float((k1 + 127) << 23)) * __int_as_float((k2 + 127) << 23);
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + exp_near(-x)); }

}  // namespace tensorfold::cuda
