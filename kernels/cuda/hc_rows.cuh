// What both kernels of wide rows with four streams do alike (hc_fused.cu: generated rows;
// hc_prompt.cu: prompt rows), in the order of kernels/hc_step.h and of the CPU.
#pragma once

#include "kernels/cuda/rows.cuh"
#include "kernels/hc_step.h"

namespace tensorfold::cuda {

inline constexpr int kWideStreams = 4;
inline constexpr int kWideOuts = (2 + kWideStreams) * kWideStreams;

// A row's coefficients as a thread holds them.
struct MixScales {
  float post[kWideStreams], comb[kWideStreams * kWideStreams], pre[kWideStreams];
  __device__ __forceinline__ MixScales(const HcStepParams& p, int64_t r) {
#pragma unroll
    for (int k = 0; k < kWideStreams; ++k) pre[k] = p.pre_in[r * kWideStreams + k];
    if (p.y == nullptr) return;
#pragma unroll
    for (int k = 0; k < kWideStreams; ++k) post[k] = p.post_in[r * kWideStreams + k];
#pragma unroll
    for (int k = 0; k < kWideStreams * kWideStreams; ++k)
      comb[k] = p.comb_in[r * kWideStreams * kWideStreams + k];
  }
};

// Four channels of all streams of a row, and of y where there is one, as they lie in memory.
struct Channels {
  uint2 x[kWideStreams];
  float4 y;
  __device__ __forceinline__ void load(const HcStepParams& p, int64_t r, int channel) {
    const int64_t h = p.hidden;
    const uint16_t* from = p.streams + r * kWideStreams * h + channel;
#pragma unroll
    for (int j = 0; j < kWideStreams; ++j) x[j] = *reinterpret_cast<const uint2*>(from + j * h);
    if (p.y != nullptr) y = *reinterpret_cast<const float4*>(p.y + r * h + channel);
  }
};

// The same mixed.
struct Mixed {
  float v[kWideStreams][4];
};
__device__ __forceinline__ Mixed mixed_channels(const Channels& c, const MixScales& s, bool mixes) {
  Mixed m;
#pragma unroll
  for (int j = 0; j < kWideStreams; ++j) {
    m.v[j][0] = bf16_low(c.x[j].x);
    m.v[j][1] = bf16_high(c.x[j].x);
    m.v[j][2] = bf16_low(c.x[j].y);
    m.v[j][3] = bf16_high(c.x[j].y);
  }
  if (!mixes) return m;
  const float y[4] = {round_bf16(c.y.x), round_bf16(c.y.y), round_bf16(c.y.z), round_bf16(c.y.w)};
  Mixed out;
#pragma unroll
  for (int k = 0; k < kWideStreams; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float sum = m.v[0][i] * s.comb[k];
#pragma unroll
      for (int j = 1; j < kWideStreams; ++j) sum += m.v[j][i] * s.comb[j * kWideStreams + k];
      out.v[k][i] = round_bf16(y[i] * s.post[k] + sum);
    }
  return out;
}

__device__ __forceinline__ uint2 packed(const float (&v)[4]) {
  return make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
}

// The collapse of four channels, and the mean over streams, before they are rounded.
__device__ __forceinline__ void collapse_channels(const Mixed& m, const MixScales& s,
                                                  float (&collapsed)[4], float (&mean)[4]) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float sum = m.v[0][c] * s.pre[0];
#pragma unroll
    for (int k = 1; k < kWideStreams; ++k) sum += m.v[k][c] * s.pre[k];
    collapsed[c] = sum;
    mean[c] = (((m.v[0][c] + m.v[1][c]) + m.v[2][c]) + m.v[3][c]) / 4.0f;
  }
}

// The lanes' sums of squares of a run of 512 values, in the CPU's order.
__device__ inline float run_squares(const uint16_t* values) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRunSteps; ++i) {
    const float v = bf16_value(values[i * 32 + lane_of()]);
    sum += v * v;
  }
  return sum;
}

// 3. Coefficients from the mixes, lane i holding the i-th: a warp. comb: lane 4 j + k. The passes'
// divisions are within two units of the last place: each pass makes good what the last one left.
__device__ inline void coefficients(const HcStepParams& p, int64_t r, float mix) {
  constexpr int n = kWideStreams;
  const int lane = lane_of();
  if (lane < kWideOuts) p.mixes[r * kWideOuts + lane] = mix;
  if (lane < n) p.pre_out[r * n + lane] = sigmoid(mix * p.scale[0] + p.base[lane]) + p.hc_eps;
  if (lane >= n && lane < 2 * n)
    p.post_out[r * n + lane - n] = 2.0f * sigmoid(mix * p.scale[1] + p.base[lane]);
  const int at = lane % (n * n), row = at / n * n, column = at % n;
  const float own = __shfl_sync(~0u, mix, 2 * n + at) * p.scale[2] + __ldg(p.base + 2 * n + at);
  float largest = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < n; ++i) largest = fmaxf(largest, __shfl_sync(~0u, own, row + i));
  const float power = exp_near(own - largest);
#pragma unroll
  for (int i = 0; i < n; ++i) sum += __shfl_sync(~0u, power, row + i);
  float value = power / sum + p.hc_eps;
#pragma unroll 1
  for (int pass = 1; pass < 2 * p.sinkhorn_iters; ++pass) {  // the first pass is columns only
    const int from = pass % 2 == 1 ? column : row, step = pass % 2 == 1 ? n : 1;
    float v[n];
#pragma unroll
    for (int i = 0; i < n; ++i) v[i] = __shfl_sync(~0u, value, from + i * step);
    value = __fdividef(value, (((v[0] + v[1]) + v[2]) + v[3]) + p.hc_eps);
  }
  if (lane < n * n) p.comb_out[r * n * n + lane] = value;
}

}  // namespace tensorfold::cuda
