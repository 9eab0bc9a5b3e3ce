// Row operations that several kernels share, in the orders of kernels/cpu/row_ops.h, so that equal
// inputs give equal bits there and here. A warp or a block works on one row in shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/numbers.h"

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

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

}  // namespace tensorfold::cuda
