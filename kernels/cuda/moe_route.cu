// Expert choice (kernels/moe_route.h).
//
// Generated rows: one launch. A block computes three experts' scores of up to eight rows, its warps
// a segment of the inputs each: chains of sixteen multiply-adds, chains and segments added with
// their rests. The block that ends last chooses for its rows, a warp a row. Weights are asked for
// before the launch ahead has ended.
// Prompt rows, and other shapes: the logits by dense.h, then a warp per row.
#include "kernels/moe_route.h"

#include <algorithm>

#include "engine/base/check.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/top_entries.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kExpertsPerBlock = 3;
constexpr int kRowsPerBlock = 8;
constexpr int kFours = 5;  // loads of four weights of a lane: up to 5,120 inputs
constexpr int kChain = 4;  // of which one chain of multiply-adds takes so many
constexpr int kHeld = 12;  // scores that a lane keeps in registers: up to 384 experts

__device__ float softplus(float v) { return v > 20.0f ? v : log1pf(exp_near(v)); }
__device__ float unbiased(float logit, float temperature) {
  return sqrtf(softplus(logit / temperature));
}

// The best experts of a row and their weights, by a warp. scores: unbiased, of the row.
// Ranks are ordered bits of s + bias, 0 for what is taken or not there; ties: lower id.
__device__ void choose(const MoeRouteParams& p, int64_t r, const float* scores) {
  const int lane = lane_of();
  const bool image = p.image != nullptr && p.image[r] != 0 && p.bias_vl != nullptr;
  const float* bias = image ? p.bias_vl : p.bias;
  const int held = (p.experts + 31) / 32;
  uint32_t rank[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int e = j * 32 + lane;
    rank[j] = e < p.experts ? ordered_bits(__ldcg(scores + e) + bias[e]) : 0;
  }
  // Experts past those in registers (none in the models so far) are looked at in memory.
  unsigned long long last = ~0ull;
  float sum = 0, mine = 0;
  int id_of_lane = 0;
  for (int i = 0; i < p.topk; ++i) {
    uint32_t best = 0, at = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j)
      if (rank[j] > best) {
        best = rank[j];
        at = static_cast<uint32_t>(j * 32 + lane);
      }
    for (int j = kHeld; j < held; ++j) {
      const int e = j * 32 + lane;
      if (e >= p.experts) break;
      const uint32_t bits = ordered_bits(__ldcg(scores + e) + bias[e]);
      const auto place = (static_cast<unsigned long long>(bits) << 32) | (0xffffffffu - e);
      if (place < last && bits > best) {
        best = bits;
        at = static_cast<uint32_t>(e);
      }
    }
    const uint32_t top = __reduce_max_sync(~0u, best);
    const uint32_t id = __reduce_min_sync(~0u, best == top ? at : ~0u);
    last = (static_cast<unsigned long long>(top) << 32) | (0xffffffffu - id);
#pragma unroll
    for (int j = 0; j < kHeld; ++j)
      if (static_cast<uint32_t>(j * 32 + lane) == id) rank[j] = 0;
    const float s = __ldcg(scores + id);
    sum += s;
    if (lane == i) {
      mine = s;
      id_of_lane = static_cast<int>(id);
    }
  }
  if (lane >= p.topk) return;
  p.ids[r * p.topk + lane] = id_of_lane;
  p.weights[r * p.topk + lane] = mine / (sum + 1e-20f) * p.scale;
}

// ---------------------------------------------------------------- generated rows
struct Weights {
  float4 v[kExpertsPerBlock][kFours];
};

__device__ float low(uint32_t two) { return __uint_as_float(two << 16); }
__device__ float high(uint32_t two) { return __uint_as_float(two & 0xffff0000u); }

// A row's sums of the block's experts over the warp's segment.
__device__ __forceinline__ void multiply(const Weights& w, const uint16_t* x, int begin, int end,
                                         Sum (&acc)[kExpertsPerBlock]) {
  float chain[kExpertsPerBlock] = {};
#pragma unroll
  for (int k = 0; k < kFours; ++k) {
    const int f = begin + 32 * k;
    const uint2 v = f < end ? *reinterpret_cast<const uint2*>(x + f * 4) : make_uint2(0, 0);
#pragma unroll
    for (int e = 0; e < kExpertsPerBlock; ++e) {
      chain[e] = fmaf(w.v[e][k].x, low(v.x), chain[e]);
      chain[e] = fmaf(w.v[e][k].y, high(v.x), chain[e]);
      chain[e] = fmaf(w.v[e][k].z, low(v.y), chain[e]);
      chain[e] = fmaf(w.v[e][k].w, high(v.y), chain[e]);
      if (k % kChain == kChain - 1 || k == kFours - 1) {
        acc[e].add(chain[e]);
        chain[e] = 0;
      }
    }
  }
#pragma unroll
  for (int e = 0; e < kExpertsPerBlock; ++e)
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_down_sync(~0u, acc[e].value, step);
      const float rest = __shfl_down_sync(~0u, acc[e].rest, step);
      acc[e].add(other);
      acc[e].rest += rest;
    }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads)
    route_few_kernel(MoeRouteParams p, const float4* gate, int32_t* tickets) {
  __shared__ Sum partial[kWarps][kExpertsPerBlock][kRows];
  __shared__ bool is_last;
  const int first_expert = blockIdx.x * kExpertsPerBlock, first_row = blockIdx.y * kRows;
  const int rows = min(kRows, p.rows - first_row);
  const int fours = p.hidden / 4, per = (fours + kThreads - 1) / kThreads * 32;
  const int begin = warp_of() * per + lane_of(), end = min(fours, (warp_of() + 1) * per);
  Weights w;
#pragma unroll
  for (int e = 0; e < kExpertsPerBlock; ++e)
#pragma unroll
    for (int k = 0; k < kFours; ++k) {
      const int64_t expert = min(first_expert + e, p.experts - 1);
      const int f = begin + 32 * k;
      w.v[e][k] = f < end ? __ldg(gate + expert * fours + f) : make_float4(0, 0, 0, 0);
    }
  begin_programmatic();
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
    Sum acc[kExpertsPerBlock];
    multiply(w, p.x + (first_row + r) * int64_t{p.hidden}, begin, end, acc);
#pragma unroll
    for (int e = 0; e < kExpertsPerBlock; ++e)
      if (lane_of() == 0) partial[warp_of()][e][r] = acc[e];
  }
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x);
  const int e = t / kRows, r = t % kRows;
  if (e < kExpertsPerBlock && r < rows && first_expert + e < p.experts) {
    Sum v = partial[0][e][r];
    for (int s = 1; s < kWarps; ++s) {
      v.add(partial[s][e][r].value);
      v.rest += partial[s][e][r].rest;
    }
    p.scores[(first_row + r) * int64_t{p.experts} + first_expert + e] =
        unbiased(v.total(), p.temperature);
  }
  __threadfence();
  __syncthreads();
  if (t == 0) is_last = atomicAdd(&tickets[blockIdx.y], 1) == static_cast<int32_t>(gridDim.x) - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (t == 0) tickets[blockIdx.y] = 0;
  if (warp_of() < rows)
    choose(p, first_row + warp_of(), p.scores + (first_row + warp_of()) * int64_t{p.experts});
}

// Whether a lane's weights fit its registers.
bool few_fits(const MoeRouteParams& p) {
  return p.gate->layout == WeightLayout::kRowsF32 && p.hidden % 4 == 0 &&
         p.hidden <= kThreads * 4 * kFours && p.topk <= 32;
}

template <int kRows>
void launch_few(const MoeRouteParams& p, CudaStream& s) {
  const dim3 grid(blocks_of(p.experts, kExpertsPerBlock), blocks_of(p.rows, kRows));
  launch_programmatic(s, route_few_kernel<kRows>, grid, kThreads, 0, 1, p,
                      static_cast<const float4*>(p.gate->data), s.tickets());
  s.launched("route_few", p.rows, p.experts, p.topk);
}

// ---------------------------------------------------------------- prompt rows, other shapes
constexpr int kRowWarps = 4;

__global__ void __launch_bounds__(kRowWarps * 32) route_kernel(MoeRouteParams p) {
  const int64_t r = int64_t{blockIdx.x} * kRowWarps + warp_of();
  begin_programmatic();
  if (r >= p.rows) return;
  float* s = p.scores + r * p.experts;
  for (int e = lane_of(); e < p.experts; e += 32) s[e] = unbiased(s[e], p.temperature);
  __syncwarp();
  choose(p, r, s);
}

void route_rows(const MoeRouteParams& p, CudaStream& s) {
  if (p.rows == 0) return;
  DenseProduct d;
  d.w = p.gate;
  d.x = p.x;
  d.x_stride = p.hidden;
  d.rows = p.rows;
  d.y = p.scores;
  d.y_stride = p.experts;
  dense_fp32(d, s);
  launch_programmatic(s, route_kernel, dim3(blocks_of(p.rows, kRowWarps)), kRowWarps * 32, 0, 1, p);
  s.launched("route", p.rows, p.experts, p.topk);
}

// `rows` of them, from `first` on.
MoeRouteParams rows_of(const MoeRouteParams& p, int first, int rows) {
  MoeRouteParams q = p;
  q.rows = rows;
  q.x += int64_t{first} * p.hidden;
  if (q.image != nullptr) q.image += first;
  q.scores += int64_t{first} * p.experts;
  q.ids += int64_t{first} * p.topk;
  q.weights += int64_t{first} * p.topk;
  return q;
}

}  // namespace

void moe_route(const MoeRouteParams& p, Stream& stream) {
  TF_CHECK_LE(p.topk, p.experts);
  TF_CHECK_LE(p.topk, 32);
  TF_CHECK_LE(p.prompt_rows, p.rows);
  CudaStream& s = cuda_stream(stream);
  if (!few_fits(p)) return route_rows(p, s);
  route_rows(rows_of(p, 0, p.prompt_rows), s);
  constexpr int kRowsOfLaunch = kRowsPerBlock * kTickets;
  for (int first = p.prompt_rows; first < p.rows; first += kRowsOfLaunch) {
    const MoeRouteParams q = rows_of(p, first, std::min(kRowsOfLaunch, p.rows - first));
    if (q.rows == 1)
      launch_few<1>(q, s);
    else
      launch_few<kRowsPerBlock>(q, s);
  }
}

}  // namespace tensorfold::cuda
