// The mixes of prompt rows (kernels/hc_step.h, wide rows of four streams): 24 outputs of many rows
// with fp32 weights, on tensor cores without loss.
//
// A weight's 24 bits are three bf16 parts of eight bits each, a row's values are bf16: three
// products of a chunk of 32 inputs, smallest parts first and from zero, then added with their rests
// (mma.cuh says why). A cluster of four thread blocks takes 32 rows and shares the inputs out; of a
// block's eight warps two take 16 outputs each and four a range of its inputs. Ranges are added
// ascending: one order for any number of rows. Operands come straight from global memory, the next
// chunk's while one is multiplied. Bytes: fn once per 32 rows from the L2, the streams once.
#include <cooperative_groups.h>

#include "kernels/cuda/hc_fused.h"
#include "kernels/cuda/hc_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"

namespace tensorfold::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kRanks = 4, kTiles = 2, kRanges = 4;
constexpr int kWarps = kTiles * kRanges;
constexpr int kRowTiles = 4;  // of eight rows
static_assert(kRowTiles == kRanks);

struct Sums {
  float2 v[kTiles][kRowTiles][4][32];  // of every lane
};

struct Operands {
  float4 w[2][2];  // outputs g and g + 8, inputs 8c .. 8c + 7
  uint4 x[kRowTiles];
};

// Weights as left operands of a chunk's two instructions.
struct Part {
  uint32_t a[2][4];
};

// What is left of a weight when its highest eight bits are taken away: exact.
__device__ __forceinline__ float rest_of(float v) {
  return v - __uint_as_float(__float_as_uint(v) & 0xffff0000u);
}

// The highest parts of the weights as operands; the weights become what is left.
__device__ __forceinline__ Part take_part(float (&v)[2][8]) {
  Part part;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& first = v[i][half * 4 + j * 2];
        float& second = v[i][half * 4 + j * 2 + 1];
        part.a[half][j * 2 + i] =
            __byte_perm(__float_as_uint(first), __float_as_uint(second), 0x7632u);
        first = rest_of(first);
        second = rest_of(second);
      }
  return part;
}

__device__ __forceinline__ void multiply_chunk(const Operands& o, Sum (&sum)[kRowTiles][4]) {
  float v[2][8];
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      v[i][j * 4] = o.w[i][j].x;
      v[i][j * 4 + 1] = o.w[i][j].y;
      v[i][j * 4 + 2] = o.w[i][j].z;
      v[i][j * 4 + 3] = o.w[i][j].w;
    }
  const Part high = take_part(v), middle = take_part(v), low = take_part(v);
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    float d[4] = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      const auto& a = (k == 0 ? low : k == 1 ? middle : high).a;
      mma_bf16(d, a[0][0], a[0][1], a[0][2], a[0][3], o.x[t].x, o.x[t].y);
      mma_bf16(d, a[1][0], a[1][1], a[1][2], a[1][3], o.x[t].z, o.x[t].w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[t][i].add(d[i]);
  }
}

__device__ __forceinline__ void add_sum(Sum& to, float2 v) {
  to.add(v.x);
  to.rest += v.y;
}

__global__ void __launch_bounds__(kWarps * 32) hc_mixes_kernel(HcStepParams p, const float* fn) {
  __shared__ Sums ranges[kRanges];  // then the block's sums in the first
  const cg::cluster_group cluster = cg::this_cluster();
  const int lane = lane_of(), g = lane >> 2, c = lane & 3;
  const int tile = warp_of() % kTiles, range = warp_of() / kTiles;
  const int rank = static_cast<int>(cluster.block_rank());
  const int first_row = static_cast<int>(blockIdx.x) / kRanks * kRowTiles * 8;
  const int width = kWideStreams * p.hidden, chunks = width / kChunk;
  const int place = rank * kRanges + range;
  const int begin = chunks * place / (kRanks * kRanges);
  const int end = chunks * (place + 1) / (kRanks * kRanges);
  const float* w[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    w[i] = fn + int64_t{min(tile * 16 + i * 8 + g, kWideOuts - 1)} * width + c * 8;
  const uint16_t* x[kRowTiles];
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t)
    x[t] = p.streams + int64_t{min(first_row + t * 8 + g, p.rows - 1)} * width + c * 8;
  const auto load = [&](int chunk) {
    Operands o;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        o.w[i][j] = __ldg(reinterpret_cast<const float4*>(w[i] + chunk * kChunk) + j);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
      o.x[t] = *reinterpret_cast<const uint4*>(x[t] + chunk * kChunk);
    return o;
  };
  begin_programmatic();
  Sum sum[kRowTiles][4];
  Operands next = load(min(begin, chunks - 1));
#pragma unroll 1
  for (int chunk = begin; chunk < end; ++chunk) {
    const Operands now = next;
    if (chunk + 1 < end) next = load(chunk + 1);
    multiply_chunk(now, sum);
  }
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      ranges[range].v[tile][t][i][lane] = make_float2(sum[t][i].value, sum[t][i].rest);
  cluster.sync();
  // Rank t finishes row tile t: outputs by the first warps, all ranks' ranges ascending.
  if (range == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Sum all;
      for (int from = 0; from < kRanks; ++from) {
        const Sums* other = cluster.map_shared_rank(ranges, from);
#pragma unroll
        for (int k = 0; k < kRanges; ++k) add_sum(all, other[k].v[tile][rank][i][lane]);
      }
      const int out = tile * 16 + (i >> 1) * 8 + g, row = first_row + rank * 8 + c * 2 + (i & 1);
      if (row < p.rows && out < kWideOuts) p.mixes[int64_t{row} * kWideOuts + out] = all.total();
    }
  }
  cluster.sync();  // nobody leaves while its sums are read
}

}  // namespace

void hc_mixes(const HcStepParams& p, CudaStream& s) {
  launch_programmatic(s, hc_mixes_kernel, dim3(blocks_of(p.rows, kRowTiles * 8) * kRanks),
                      kWarps * 32, 0, kRanks, p, static_cast<const float*>(p.fn->data));
  s.launched("hc_mixes", p.rows, p.hidden);
}

}  // namespace tensorfold::cuda
