// Hyper-connections of generated rows (kernels/hc_step.h) in one launch: four streams, wide rows.
//
// A cluster of eight thread blocks takes one to eight rows. Thread block s holds values
// [s W / 8, (s + 1) W / 8) of the flattened row (W = 4 H): half a stream. It mixes that part, and
// the collapse of its channels; adds its share of the coefficients' products (a warp per output)
// and of the squares; shares come together through distributed shared memory. Squares and mixing
// have the CPU's order of summation; products are chains of sixteen multiply-adds whose sums are
// added with their rests.
// Bytes: fn once per cluster (2 MB, from the L2 after the first), rows once, x four times.
#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/hc_fused.h"
#include "kernels/cuda/hc_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"

namespace tensorfold::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kStreams = kWideStreams;
constexpr int kRanks = 8;
constexpr int kOuts = kWideOuts;
constexpr int kThreads = kOuts * 32;  // a warp per output
constexpr int kRowsMax = 8;           // of a cluster
constexpr int kClustersWanted = 16;   // as many as run at once
constexpr int kGroup = 4;             // loads of four values in a chain of multiply-adds

// Places in shared memory, in bytes; `part` values of a row lie in a thread block.
struct Layout {
  int part, runs;  // values, and runs of 512 of them
  int x, h, squares, h_squares, sums, inverse, bytes;
  __host__ __device__ constexpr Layout(int hidden, int rows)
      : part(hidden / 2),
        runs(hidden / 2 / kRunValues),
        x(0),
        h(rows * part * 2),
        squares(2 * rows * part * 2),
        h_squares(squares + rows * runs * 128),
        sums(h_squares + rows * runs * 128),
        inverse(sums + rows * kOuts * 8),
        bytes(inverse + rows * 4) {}
};

// This thread block's part of a row: its half stream mixed, the collapse of its channels, the tap.
__device__ void mix_row(const HcStepParams& p, int64_t r, int rank, uint16_t* x, uint16_t* h) {
  const int stream = rank / 2, first = rank % 2 * (p.hidden / 2);
  for (int i = threadIdx.x * 4; i < p.hidden / 2; i += kThreads * 4) {
    const int channel = first + i;
    const Mixed m = mixed_channels(p, r, channel);
#pragma unroll
    for (int k = 0; k < kStreams; ++k)
      if (k == stream) *reinterpret_cast<uint2*>(x + i) = packed(m.v[k]);
    float collapsed[4], tap[4];
    collapse_channels(p, r, m, collapsed, tap);
    *reinterpret_cast<uint2*>(h + i) = packed(collapsed);
    if (p.tap != nullptr && stream == 0)
      *reinterpret_cast<uint2*>(p.tap + r * p.tap_stride + channel) = packed(tap);
  }
}

// The whole warp's sum, by a tree over the lanes; in lane 0.
__device__ Sum tree_sum(Sum v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_down_sync(~0u, v.value, step);
    const float rest = __shfl_down_sync(~0u, v.rest, step);
    v.add(other);
    v.rest += rest;
  }
  return v;
}

// One output's products with this thread block's part of `rows` rows, by a warp.
template <int kRows>
__device__ void products(const float* w, const uint16_t* x, int part, int rows, float2* sums) {
  const auto* w4 = reinterpret_cast<const float4*>(w);
  Sum acc[kRows];
  const int lane = lane_of(), fours = part / 4;
  for (int f = lane; f < fours; f += 32 * kGroup) {
    float4 wv[kGroup];
#pragma unroll
    for (int g = 0; g < kGroup; ++g)
      wv[g] = f + 32 * g < fours ? __ldg(w4 + f + 32 * g) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      float chain = 0;
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        if (f + 32 * g >= fours) break;
        const uint2 v = *reinterpret_cast<const uint2*>(x + r * part + (f + 32 * g) * 4);
        chain = fmaf(wv[g].x, half_low(v.x), chain);
        chain = fmaf(wv[g].y, half_high(v.x), chain);
        chain = fmaf(wv[g].z, half_low(v.y), chain);
        chain = fmaf(wv[g].w, half_high(v.y), chain);
      }
      acc[r].add(chain);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    const Sum v = tree_sum(acc[r]);
    if (lane == 0) sums[r * kOuts] = make_float2(v.value, v.rest);
  }
}

// 1 / rms of n values from the lanes' sums of all ranks in [0, ranks), ascending.
__device__ float inverse_of(const cg::cluster_group& cluster, float* squares, int ranks, int runs,
                            int n, float eps) {
  Cascade cascade;
  for (int rank = 0; rank < ranks; ++rank) {
    const float* from = cluster.map_shared_rank(squares, rank);
    for (int run = 0; run < runs; ++run) cascade.add_run(from[run * 32 + lane_of()]);
  }
  return inverse_rms(sum_columns(cascade.total(0)), n, eps);
}

// Lane i < 24: the i-th mix of a row, before its scale.
__device__ float whole_sum(const cg::cluster_group& cluster, float2* sums) {
  const int i = min(lane_of(), kOuts - 1);
  Sum all;
  for (int rank = 0; rank < kRanks; ++rank) {
    const float2 v = cluster.map_shared_rank(sums, rank)[i];
    all.add(v.x);
    all.rest += v.y;
  }
  return all.total();
}

// What this thread block writes of a row: its half stream, an eighth of the normed row.
__device__ void store_row(const HcStepParams& p, int64_t r, int rank, const uint16_t* x,
                          const uint16_t* h, float inverse) {
  const int half = p.hidden / 2, eighth = p.hidden / 8;
  const int first = rank % 2 * half, share = rank / 2 * eighth;
  if (p.y != nullptr) {
    uint16_t* to = p.streams + (r * kStreams + rank / 2) * p.hidden + first;
    for (int i = threadIdx.x * 8; i < half; i += kThreads * 8)
      *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(x + i);
  }
  for (int i = threadIdx.x * 2; i < eighth; i += kThreads * 2) {
    const uint32_t two = *reinterpret_cast<const uint32_t*>(h + share + i);
    const int channel = first + share + i;
    const float2 w = *reinterpret_cast<const float2*>(p.norm_weight + channel);
    *reinterpret_cast<uint32_t*>(p.normed + r * p.hidden + channel) =
        pack_bf16(w.x * (half_low(two) * inverse), w.y * (half_high(two) * inverse));
    if (p.collapsed != nullptr)
      *reinterpret_cast<uint32_t*>(p.collapsed + r * p.hidden + channel) = two;
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    hc_fused_kernel(HcStepParams p, const float* fn, int cluster_rows) {
  extern __shared__ __align__(16) std::byte memory[];
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank()), warp = warp_of();
  const int first_row = static_cast<int>(blockIdx.x) / kRanks * cluster_rows;
  const int rows = min(cluster_rows, p.rows - first_row);
  const Layout at(p.hidden, cluster_rows);
  auto* x = reinterpret_cast<uint16_t*>(memory + at.x);
  auto* h = reinterpret_cast<uint16_t*>(memory + at.h);
  auto* squares = reinterpret_cast<float*>(memory + at.squares);
  auto* h_squares = reinterpret_cast<float*>(memory + at.h_squares);
  auto* sums = reinterpret_cast<float2*>(memory + at.sums);
  auto* inverse = reinterpret_cast<float*>(memory + at.inverse);
  const float* w = fn + int64_t{warp} * kStreams * p.hidden + int64_t{rank} * at.part;
  for (int i = lane_of() * 32; i < at.part; i += 32 * 32) prefetch_line(w + i);
  begin_programmatic();
  for (int r = 0; r < rows; ++r) mix_row(p, first_row + r, rank, x + r * at.part, h + r * at.part);
  __syncthreads();
  for (int i = warp; i < rows * at.runs * 2; i += kThreads / 32) {
    const bool of_h = i >= rows * at.runs;
    const int run = of_h ? i - rows * at.runs : i;  // of all rows
    const uint16_t* from = (of_h ? h : x) + run * kRunValues;
    (of_h ? h_squares : squares)[run * 32 + lane_of()] = run_squares(from);
  }
  products<kRows>(w, x, at.part, rows, sums + warp);
  cluster.sync();
  const int runs_of_row = at.runs * 32;
  if (warp < rows) {
    const float v =
        inverse_of(cluster, h_squares + warp * runs_of_row, 2, at.runs, p.hidden, p.norm_eps);
    if (lane_of() == 0) inverse[warp] = v;
  }
  // Each row's coefficients by the last warp of another thread block.
  const bool chooses = warp == kThreads / 32 - 1 && rank < rows;
  float mix = 0;
  if (chooses)
    mix = whole_sum(cluster, sums + rank * kOuts) *
          inverse_of(cluster, squares + rank * runs_of_row, kRanks, at.runs, kStreams * p.hidden,
                     p.norm_eps);
  cluster.barrier_arrive();  // all that others hold has been read
  __syncthreads();
  if (chooses) coefficients(p, first_row + rank, mix);
  for (int r = 0; r < rows; ++r)
    store_row(p, first_row + r, rank, x + r * at.part, h + r * at.part, inverse[r]);
  cluster.barrier_wait();
}

template <int kRows>
void launch(const HcStepParams& p, int cluster_rows, CudaStream& s) {
  const Layout at(p.hidden, cluster_rows);
  allow_shared(s, hc_fused_kernel<kRows>, at.bytes);
  launch_programmatic(s, hc_fused_kernel<kRows>, dim3(blocks_of(p.rows, cluster_rows) * kRanks),
                      kThreads, at.bytes, kRanks, p, static_cast<const float*>(p.fn->data),
                      cluster_rows);
}

}  // namespace

bool hc_fuses(const HcStepParams& p) {
  return p.hc == kStreams && p.fn != nullptr && p.normed != nullptr &&
         p.fn->layout == WeightLayout::kRowsF32 && p.hidden % (2 * kRunValues) == 0 &&
         Layout(p.hidden, 1).bytes <= kSharedBlockBytes;
}

void hc_fused(const HcStepParams& p, CudaStream& s) {
  int rows = std::clamp(blocks_of(p.rows, kClustersWanted), 1, kRowsMax);
  while (Layout(p.hidden, rows).bytes > kSharedBlockBytes) --rows;
  if (rows == 1)
    launch<1>(p, rows, s);
  else if (rows == 2)
    launch<2>(p, rows, s);
  else
    launch<kRowsMax>(p, rows, s);
  s.launched("hc_fused", p.rows, p.hidden, p.hc);
}

}  // namespace tensorfold::cuda
