// Expert choice (kernels/moe_route.h): fp32 logits, then a warp per row.
#include "kernels/moe_route.h"

#include "engine/base/check.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/top_entries.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kWarps = 4;

__device__ float softplus(float v) { return v > 20.0f ? v : log1pf(exp_near(v)); }

// The larger rank goes first: larger value, then lower index. Never 0.
__device__ unsigned long long descending_rank(float v, uint32_t index) {
  return (static_cast<unsigned long long>(ordered_bits(v)) << 32) | (0xffffffffu - index);
}

__global__ void __launch_bounds__(kWarps * 32) route_kernel(MoeRouteParams p) {
  const int64_t r = int64_t{blockIdx.x} * kWarps + warp_of();
  if (r >= p.rows) return;
  const int lane = lane_of();
  float* s = p.scores + r * p.experts;
  for (int e = lane; e < p.experts; e += 32) s[e] = sqrtf(softplus(s[e] / p.temperature));
  __syncwarp();
  const bool image = p.image != nullptr && p.image[r] != 0 && p.bias_vl != nullptr;
  const float* bias = image ? p.bias_vl : p.bias;
  int32_t* ids = p.ids + r * p.topk;
  float sum = 0;
  unsigned long long last = ~0ull;
  for (int i = 0; i < p.topk; ++i) {  // the best below the last one taken
    unsigned long long best = 0;
    for (int e = lane; e < p.experts; e += 32) {
      const auto rank = descending_rank(s[e] + bias[e], static_cast<uint32_t>(e));
      if (rank < last && rank > best) best = rank;
    }
    for (int step = 16; step > 0; step /= 2) {
      const auto other = __shfl_xor_sync(~0u, best, step);
      best = other > best ? other : best;
    }
    last = best;
    const auto id = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
    if (lane == 0) ids[i] = id;
    sum += s[id];
  }
  __syncwarp();
  for (int i = lane; i < p.topk; i += 32)
    p.weights[r * p.topk + i] = s[ids[i]] / (sum + 1e-20f) * p.scale;
}

}  // namespace

void moe_route(const MoeRouteParams& p, Stream& stream) {
  TF_CHECK_LE(p.topk, p.experts);
  if (p.rows == 0) return;
  CudaStream& s = cuda_stream(stream);
  DenseProduct d;
  d.w = p.gate;
  d.x = p.x;
  d.x_stride = p.hidden;
  d.rows = p.rows;
  d.y = p.scores;
  d.y_stride = p.experts;
  dense_fp32(d, s);
  route_kernel<<<blocks_of(p.rows, kWarps), kWarps * 32, 0, s.handle()>>>(p);
  s.launched("route", p.rows, p.experts, p.topk);
}

}  // namespace tensorfold::cuda
