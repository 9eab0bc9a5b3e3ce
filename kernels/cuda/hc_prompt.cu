// Hyper-connections of prompt rows (kernels/hc_step.h): four streams, wide rows.
//
// A block a row mixes, taps, collapses and norms, with the row in shared memory; the coefficients'
// products follow over all rows (hc_mixes.cu), then a warp a row makes the coefficients of them.
// Bytes: the streams twice read and once written, y and the result once.
#include "kernels/cuda/hc_fused.h"
#include "kernels/cuda/hc_rows.cuh"
#include "kernels/cuda/launch.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = 320;  // four channels each, a quarter of 5,120 at a time
constexpr int kWarps = kThreads / 32;
constexpr int kCoefficientWarps = 4;

constexpr int runs_of(int hidden) { return hidden / kRunValues; }
constexpr int shared_bytes(int hidden) {
  return (kWideStreams + 1) * (hidden * 2 + runs_of(hidden) * 128) + 16;
}

__device__ float inverse_of(const float* squares, int runs, int n, float eps) {
  Cascade cascade;
  for (int run = 0; run < runs; ++run) cascade.add_run(squares[run * 32 + lane_of()]);
  return inverse_rms(sum_columns(cascade.total(0)), n, eps);
}

// inverses: [rows] 1 / rms of the streams.
__global__ void __launch_bounds__(kThreads) hc_prompt_kernel(HcStepParams p, float* inverses) {
  extern __shared__ __align__(16) std::byte memory[];
  const int h = p.hidden, runs = h / kRunValues, warp = warp_of();
  auto* x = reinterpret_cast<uint16_t*>(memory);  // [4][H], then the collapsed row
  auto* squares = reinterpret_cast<float*>(memory + (kWideStreams + 1) * h * 2);
  float* inverse = squares + (kWideStreams + 1) * runs * 32;
  uint16_t* collapsed = x + kWideStreams * h;
  const int64_t r = blockIdx.x;
  begin_programmatic();
  const MixScales scales(p, r);
  Channels next;
  if (threadIdx.x * 4 < h) next.load(p, r, threadIdx.x * 4);
  for (int i = threadIdx.x * 4; i < h; i += kThreads * 4) {
    const Channels now = next;
    if (i + kThreads * 4 < h) next.load(p, r, i + kThreads * 4);
    const Mixed m = mixed_channels(now, scales, p.y != nullptr);
#pragma unroll
    for (int k = 0; k < kWideStreams; ++k) {
      const uint2 four = packed(m.v[k]);
      *reinterpret_cast<uint2*>(x + k * h + i) = four;
      if (p.y != nullptr)
        *reinterpret_cast<uint2*>(p.streams + (r * kWideStreams + k) * h + i) = four;
    }
    float sums[4], means[4];
    collapse_channels(m, scales, sums, means);
    *reinterpret_cast<uint2*>(collapsed + i) = packed(sums);
    if (p.collapsed != nullptr) *reinterpret_cast<uint2*>(p.collapsed + r * h + i) = packed(sums);
    if (p.tap != nullptr) *reinterpret_cast<uint2*>(p.tap + r * p.tap_stride + i) = packed(means);
  }
  __syncthreads();
  for (int run = warp; run < (kWideStreams + 1) * runs; run += kWarps)
    squares[run * 32 + lane_of()] = run_squares(x + run * kRunValues);
  __syncthreads();
  if (warp == 0) {
    const float v = inverse_of(squares + kWideStreams * runs * 32, runs, h, p.norm_eps);
    if (lane_of() == 0) *inverse = v;
  }
  if (warp == 1) {
    const float v = inverse_of(squares, kWideStreams * runs, kWideStreams * h, p.norm_eps);
    if (lane_of() == 0) inverses[r] = v;
  }
  __syncthreads();
  const float scale = *inverse;
  for (int i = threadIdx.x * 4; i < h; i += kThreads * 4) {
    const uint2 four = *reinterpret_cast<const uint2*>(collapsed + i);
    const float4 w = *reinterpret_cast<const float4*>(p.norm_weight + i);
    const float v[4] = {w.x * (bf16_low(four.x) * scale), w.y * (bf16_high(four.x) * scale),
                        w.z * (bf16_low(four.y) * scale), w.w * (bf16_high(four.y) * scale)};
    *reinterpret_cast<uint2*>(p.normed + r * h + i) = packed(v);
  }
}

__global__ void __launch_bounds__(kCoefficientWarps * 32)
    hc_coefficients_kernel(HcStepParams p, const float* inverses) {
  const int64_t r = int64_t{blockIdx.x} * kCoefficientWarps + warp_of();
  begin_programmatic();
  if (r >= p.rows) return;
  const float mix = p.mixes[r * kWideOuts + min(lane_of(), kWideOuts - 1)];
  coefficients(p, r, mix * inverses[r]);
}

}  // namespace

int64_t hc_prompt_bytes(int rows) { return Pieces::padded(int64_t{rows} * 4); }

void hc_prompt(const HcStepParams& p, CudaStream& s) {
  Pieces pieces(p.workspace);
  auto* inverses = pieces.take<float>(p.rows);
  const int bytes = shared_bytes(p.hidden);
  allow_shared(s, hc_prompt_kernel, bytes);
  launch_programmatic(s, hc_prompt_kernel, dim3(p.rows), kThreads, bytes, 1, p, inverses);
  s.launched("hc_prompt", p.rows, p.hidden, p.hc);
  hc_mixes(p, s);
  launch_programmatic(s, hc_coefficients_kernel, dim3(blocks_of(p.rows, kCoefficientWarps)),
                      kCoefficientWarps * 32, 0, 1, p, inverses);
  s.launched("hc_coefficients", p.rows, p.hc);
}

}  // namespace tensorfold::cuda
