// Hyper-connections of generated rows (kernels/hc_step.h) in one launch: four streams, wide rows.
//
// A cluster of eight thread blocks takes one to eight rows. Thread block s holds values
// [s W / 8, (s + 1) W / 8) of the flattened row (W = 4 H): half a stream. It mixes that part, and
// the collapse of its channels; adds its share of the coefficients' products (a warp per output)
// and of the squares; shares come together through distributed shared memory, by stores that count
// on a barrier of the rank that waits for them. Squares and mixing have the CPU's order of
// summation; products are chains of sixteen multiply-adds whose sums are added with their rests.
// Bytes: fn once per cluster (2 MB, from the L2 after the first), rows once, x four times.
#include <algorithm>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/hc_fused.h"
#include "kernels/cuda/hc_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kStreams = kWideStreams;
constexpr int kRanks = 8;
constexpr int kOuts = kWideOuts;
constexpr int kThreads = kOuts * 32;  // a warp per output
constexpr int kRowsMax = 8;           // of a cluster
constexpr int kClustersWanted = 16;   // as many as run at once
constexpr int kGroup = 4;             // loads of four values in a chain of multiply-adds

// Places in shared memory, in bytes; `part` values of a row lie in a thread block. squares, sums:
// of the row that this rank chooses for, sent by all ranks; h_squares: of all rows.
struct Layout {
  int part, runs;  // values, and runs of 512 of them
  int x, h, squares, h_squares, sums, inverse, arrived, bytes;
  __host__ __device__ constexpr Layout(int hidden, int rows)
      : part(hidden / 2),
        runs(hidden / 2 / kRunValues),
        x(0),
        h(rows * part * 2),
        squares(2 * rows * part * 2),
        h_squares(squares + kRanks * runs * 128),
        sums(h_squares + rows * 2 * runs * 128),
        inverse(sums + kRanks * kOuts * 8),
        arrived(inverse + kRowsMax * 4),
        bytes(arrived + 8) {}
};

// This thread block's part of a row: its half stream mixed, the collapse of its channels, the tap.
__device__ void mix_row(const HcStepParams& p, int64_t r, int rank, uint16_t* x, uint16_t* h) {
  const int stream = rank / 2, first = rank % 2 * (p.hidden / 2);
  const MixScales scales(p, r);
  for (int i = threadIdx.x * 4; i < p.hidden / 2; i += kThreads * 4) {
    const int channel = first + i;
    Channels four;
    four.load(p, r, channel);
    const Mixed m = mixed_channels(four, scales, p.y != nullptr);
#pragma unroll
    for (int k = 0; k < kStreams; ++k)
      if (k == stream) *reinterpret_cast<uint2*>(x + i) = packed(m.v[k]);
    float collapsed[4], tap[4];
    collapse_channels(m, scales, collapsed, tap);
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

// A group of an output's weights: values 4 f .. of four places 32 lanes apart. kWhole: `fours` is a
// multiple of a group, so a group is there or not.
template <bool kWhole>
struct WeightGroup {
  float4 v[kGroup];
  __device__ __forceinline__ void load(const float* w, int f, int fours) {
    if (kWhole && f >= fours) return;
#pragma unroll
    for (int g = 0; g < kGroup; ++g)
      v[g] = kWhole || f + 32 * g < fours ? __ldg(reinterpret_cast<const float4*>(w) + f + 32 * g)
                                          : make_float4(0, 0, 0, 0);
  }
};

// One output's products with this thread block's part of `rows` rows, by a warp; the first group of
// weights is there. send(row, sum): lane 0.
template <int kRows, bool kWhole, typename Send>
__device__ void products(const float* w, WeightGroup<kWhole> next, const uint16_t* x, int part,
                         int rows, const Send& send) {
  Sum acc[kRows];
  const int lane = lane_of(), fours = part / 4;
  for (int f = lane; f < fours; f += 32 * kGroup) {
    const WeightGroup<kWhole> now = next;
    next.load(w, f + 32 * kGroup, fours);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      float chain = 0;
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        if (!kWhole && f + 32 * g >= fours) break;
        const uint2 v = *reinterpret_cast<const uint2*>(x + r * part + (f + 32 * g) * 4);
        chain = fmaf(now.v[g].x, bf16_low(v.x), chain);
        chain = fmaf(now.v[g].y, bf16_high(v.x), chain);
        chain = fmaf(now.v[g].z, bf16_low(v.y), chain);
        chain = fmaf(now.v[g].w, bf16_high(v.y), chain);
      }
      acc[r].add(chain);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    const Sum v = tree_sum(acc[r]);
    if (lane == 0) send(r, make_float2(v.value, v.rest));
  }
}

// 1 / rms of n values from the lanes' sums of `runs` runs, ascending.
__device__ float inverse_of(const float* squares, int runs, int n, float eps) {
  constexpr int kAtOnce = 8;
  Cascade cascade;
  for (int first = 0; first < runs; first += kAtOnce) {
    float v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      v[i] = first + i < runs ? squares[(first + i) * 32 + lane_of()] : 0.0f;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < runs) cascade.add_run(v[i]);
  }
  return inverse_rms(sum_columns(cascade.total(0)), n, eps);
}

// Lane i < 24: the i-th mix of a row, before its scale. sums: [8][24].
__device__ float whole_sum(const float2* sums) {
  const int i = min(lane_of(), kOuts - 1);
  Sum all;
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) {
    const float2 v = sums[rank * kOuts + i];
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
        pack_bf16(w.x * (bf16_low(two) * inverse), w.y * (bf16_high(two) * inverse));
    if (p.collapsed != nullptr)
      *reinterpret_cast<uint32_t*>(p.collapsed + r * p.hidden + channel) = two;
  }
}

// A value to place `place` of rank `to`'s shared memory; shared: where this rank's begins.
__device__ __forceinline__ void send(uint32_t shared, int place, int to, const Layout& at,
                                     float v) {
  const uint32_t there = remote_place(shared, to);
  remote_store(there + static_cast<uint32_t>(place), __float_as_uint(v),
               there + static_cast<uint32_t>(at.arrived));
}
// What rank `rank` is sent, in bytes.
__device__ __forceinline__ uint32_t sent_bytes(const Layout& at, int rank, int rows) {
  const int of_rows = rows * 2 * at.runs * 128;
  const int of_own = rank < rows ? kRanks * (at.runs * 128 + kOuts * 8) : 0;
  return static_cast<uint32_t>(of_rows + of_own);
}

// Squares of this thread block's part: of a row to the rank that chooses for it, of the collapsed
// channels (ranks 0 and 1 have them all) to every rank.
__device__ void send_squares(const Layout& at, int rank, int rows, uint32_t shared,
                             const uint16_t* x, const uint16_t* h) {
  const int lane = lane_of();
  const int count = rows * at.runs;
  for (int i = warp_of(); i < (rank < 2 ? 2 : 1) * count; i += kThreads / 32) {
    const bool of_h = i >= count;
    const int all = of_h ? i - count : i, row = all / at.runs, run = all % at.runs;
    const float v = run_squares((of_h ? h : x) + all * kRunValues);
    if (!of_h) {
      send(shared, at.squares + ((rank * at.runs + run) * 32 + lane) * 4, row, at, v);
      continue;
    }
    const int place = ((row * 2 + rank) * at.runs + run) * 32 + lane;
    for (int to = 0; to < kRanks; ++to) send(shared, at.h_squares + place * 4, to, at, v);
  }
}

template <int kRows, bool kWhole>
__global__ void __launch_bounds__(kThreads, 1)
    hc_fused_kernel(HcStepParams p, const float* fn, int cluster_rows) {
  extern __shared__ __align__(16) std::byte memory[];
  const int rank = static_cast<int>(cluster_rank()), warp = warp_of();
  const uint32_t shared = shared_place(memory);
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
  WeightGroup<kWhole> weights;
  weights.load(w, lane_of(), at.part / 4);
  for (int i = lane_of() * 32; i < at.part; i += 32 * 32) prefetch_line(w + i);
  if (threadIdx.x == 0) {
    barrier_init(shared + at.arrived);
    barrier_init_done();
    barrier_expect(shared + at.arrived, sent_bytes(at, rank, rows));
  }
  begin_programmatic();
  cluster_begun();  // the others may send here
  for (int r = 0; r < rows; ++r) mix_row(p, first_row + r, rank, x + r * at.part, h + r * at.part);
  __syncthreads();
  cluster_wait();
  send_squares(at, rank, rows, shared, x, h);
  products<kRows, kWhole>(w, weights, x, at.part, rows, [&](int r, float2 sum) {
    const int place = at.sums + (rank * kOuts + warp) * 8;
    send(shared, place, r, at, sum.x);
    send(shared, place + 4, r, at, sum.y);
  });
  barrier_wait(shared + at.arrived, 0);
  // Each row's coefficients by the last warp of another thread block.
  const bool chooses = warp == kThreads / 32 - 1 && rank < rows;
  if (warp < rows) {
    const float v =
        inverse_of(h_squares + warp * 2 * at.runs * 32, 2 * at.runs, p.hidden, p.norm_eps);
    if (lane_of() == 0) inverse[warp] = v;
  }
  __syncthreads();
  if (chooses)
    coefficients(
        p, first_row + rank,
        whole_sum(sums) * inverse_of(squares, kRanks * at.runs, kStreams * p.hidden, p.norm_eps));
  for (int r = 0; r < rows; ++r)
    store_row(p, first_row + r, rank, x + r * at.part, h + r * at.part, inverse[r]);
}

template <int kRows, bool kWhole>
void launch(const HcStepParams& p, int cluster_rows, CudaStream& s) {
  const Layout at(p.hidden, cluster_rows);
  allow_shared(s, hc_fused_kernel<kRows, kWhole>, at.bytes);
  launch_programmatic(s, hc_fused_kernel<kRows, kWhole>,
                      dim3(blocks_of(p.rows, cluster_rows) * kRanks), kThreads, at.bytes, kRanks, p,
                      static_cast<const float*>(p.fn->data), cluster_rows);
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
  const bool whole = p.hidden / 2 % (4 * 32 * kGroup) == 0;
  if (rows == 1 && whole)
    launch<1, true>(p, rows, s);
  else if (rows == 1)
    launch<1, false>(p, rows, s);
  else if (rows == 2)
    launch<2, false>(p, rows, s);
  else
    launch<kRowsMax, false>(p, rows, s);
  s.launched("hc_fused", p.rows, p.hidden, p.hc);
}

}  // namespace tensorfold::cuda
