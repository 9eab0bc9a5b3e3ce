// Products that must not lose anything to the tensor cores' formats (kernels/cuda/dense.h): the
// router, the hyper-connections' mixes, fp32 weights.
//
// An fp32 weight is exactly the sum of three bf16 values (8 + 8 + 8 bits), a bf16 input is one, so
// three tensor-core products of a chunk of 32 inputs, smallest part first, have every bit of the
// fp32 one. Each chunk starts from zero and is added to a compensated sum, as in mma.cuh. Parts
// that are zero for a warp's 16 outputs are left out (weights stored as bf16 or fp16 have one or
// two).
//
// Order of a sum: 32 groups of chunks, a function of the weight's inputs alone; chunks of a
// group ascending, then groups ascending. So both kernels give the same bits, whatever rows share
// the call: a warp takes some groups of 16 outputs and a few rows, a cluster shares the groups
// (dense_fp32_spread_kernel: few outputs, few rows); or a warp takes all groups of 16 outputs and
// 32 rows (dense_fp32_block_kernel).
#include <cooperative_groups.h>

#include "engine/base/check.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.cuh"

namespace tensorfold::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kGroups = 32;
constexpr int kOuts = 16;  // of a product

struct Args {
  const void* w;
  const uint16_t* x;
  int64_t x_stride;
  void* y;
  int64_t y_stride;
  int rows, in, out;
  bool wide;  // y is fp32
  __device__ int group_begin(int g) const { return in / kChunk * g / kGroups; }
  __device__ void store(int row, int output, const Sum& v) const {
    if (row >= rows || output >= out) return;
    const int64_t at = row * y_stride + output;
    if (wide)
      static_cast<float*>(y)[at] = v.total();
    else
      static_cast<uint16_t*>(y)[at] = to_bf16(v.total());
  }
};

__device__ inline void add_sum(Sum& to, float2 group) {
  to.add(group.x);
  to.rest += group.y;
}

// ---------------------------------------------------------------- operands of a chunk
// Outputs g and g + 8 of a lane, inputs 8c .. 8c + 7.
template <typename W>
struct RawWeights;
template <>
struct RawWeights<float> {
  float4 v[2][2];
  __device__ void load(const void* w, int64_t first, int64_t second) {
    const auto* p = static_cast<const float*>(w);
    v[0][0] = __ldg(reinterpret_cast<const float4*>(p + first));
    v[0][1] = __ldg(reinterpret_cast<const float4*>(p + first + 4));
    v[1][0] = __ldg(reinterpret_cast<const float4*>(p + second));
    v[1][1] = __ldg(reinterpret_cast<const float4*>(p + second + 4));
  }
};
template <>
struct RawWeights<uint16_t> {
  uint4 v[2];
  __device__ void load(const void* w, int64_t first, int64_t second) {
    const auto* p = static_cast<const uint16_t*>(w);
    v[0] = __ldg(reinterpret_cast<const uint4*>(p + first));
    v[1] = __ldg(reinterpret_cast<const uint4*>(p + second));
  }
};

// Takes the nearest bf16 pair out of two values.
__device__ inline uint32_t take_pair(float& a, float& b) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
  a -= bf16_low(pair);
  b -= bf16_high(pair);
  return pair;
}

// Sums of a group of chunks for 16 outputs and 8 NT rows.
template <int NT>
struct GroupSum {
  Sum large[NT][4];
  float small[NT][4] = {};
  __device__ float2 total(int n, int i) const {
    Sum all = large[n][i];
    all.add(small[n][i]);
    return make_float2(all.value, all.rest);
  }
};

// sum += weights . rows over a chunk; the same for any number of rows.
template <int NT>
__device__ inline void add_products(const RawWeights<float>& raw, const uint4 (&x)[NT],
                                    GroupSum<NT>& sum) {
  uint4 part[3][2];  // largest first
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float4 a = raw.v[half][0], b = raw.v[half][1];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      part[i][half].x = take_pair(a.x, a.y);
      part[i][half].y = take_pair(a.z, a.w);
      part[i][half].z = take_pair(b.x, b.y);
      part[i][half].w = take_pair(b.z, b.w);
    }
  }
  const auto some = [](const uint4(&p)[2]) {
    const uint32_t bits = p[0].x | p[0].y | p[0].z | p[0].w | p[1].x | p[1].y | p[1].z | p[1].w;
    return __any_sync(~0u, (bits & 0x7fff7fffu) != 0);
  };
  const bool third = some(part[2]), second = third || some(part[1]);
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    if (third) mma_chunk(sum.small[n], part[2][0], part[2][1], x[n]);
    if (second) mma_chunk(sum.small[n], part[1][0], part[1][1], x[n]);
    mma_chunk(sum.large[n], part[0][0], part[0][1], x[n]);
  }
}
template <int NT>
__device__ inline void add_products(const RawWeights<uint16_t>& raw, const uint4 (&x)[NT],
                                    GroupSum<NT>& sum) {
#pragma unroll
  for (int n = 0; n < NT; ++n) mma_chunk(sum.large[n], raw.v[0], raw.v[1], x[n]);
}

// What a lane reads: rows 8 n + g of the call and two outputs, from input 8c on.
template <typename W, int NT>
struct Reader {
  const void* w;
  const uint16_t* x;
  uint32_t first, second, row[NT];  // in elements
  __device__ Reader(const Args& p, int first_out, int first_row) : w(p.w), x(p.x) {
    const int g = lane_of() >> 2, c = lane_of() & 3;
    first = min(first_out + g, p.out - 1) * p.in + 8 * c;
    second = min(first_out + g + 8, p.out - 1) * p.in + 8 * c;
#pragma unroll
    for (int n = 0; n < NT; ++n)
      row[n] = static_cast<uint32_t>(min(first_row + 8 * n + g, p.rows - 1) * p.x_stride + 8 * c);
  }
  struct Operands {
    RawWeights<W> w;
    uint4 x[NT];
  };
  __device__ void load(int chunk, Operands& to) const {
    const uint32_t at = chunk * kChunk;
    to.w.load(w, first + at, second + at);
#pragma unroll
    for (int n = 0; n < NT; ++n) to.x[n] = *reinterpret_cast<const uint4*>(x + (row[n] + at));
  }
  // Chunks [begin, end) of one group; the operands of the next kAhead are on their way.
  template <int kAhead>
  __device__ void add(int begin, int end, GroupSum<NT>& sum) const {
    Operands ring[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (begin + i < end) load(begin + i, ring[i]);
    for (int chunk = begin; chunk < end; chunk += kAhead)
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (chunk + i >= end) break;
        const Operands now = ring[i];
        if (chunk + i + kAhead < end) load(chunk + i + kAhead, ring[i]);
        add_products(now.w, now.x, sum);
      }
  }
};

// ---------------------------------------------------------------- few outputs or few rows
// A block: MT x 16 outputs, NT x 8 rows; its share of the groups, over KW warps an output tile. The
// groups' sums meet in shared memory: [group][output][row].
template <typename W, int MT, int NT, int KW>
__global__ void __launch_bounds__(MT* KW * 32, 1) dense_fp32_spread_kernel(Args p) {
  extern __shared__ float2 group_sum[];
  constexpr int kElements = MT * kOuts * NT * 8;
  const cg::cluster_group cluster = cg::this_cluster();
  const int size = static_cast<int>(cluster.num_blocks());
  const int rank = static_cast<int>(cluster.block_rank());
  const int first_out = static_cast<int>(blockIdx.x) / size * MT * kOuts;
  const int first_row = blockIdx.y * NT * 8;
  const int tile = warp_of() / KW, groups = kGroups / size;
  const int g = lane_of() >> 2, c = lane_of() & 3;
  begin_programmatic();
  const Reader<W, NT> reader(p, first_out + tile * kOuts, first_row);
  for (int i = warp_of() % KW; i < groups; i += KW) {
    GroupSum<NT> sum;
    const int group = rank * groups + i;
    reader.template add<NT == 1   ? 4
                        : NT == 2 ? 2
                                  : 1>(p.group_begin(group), p.group_begin(group + 1), sum);
    float2* to = group_sum + i * kElements + tile * kOuts * NT * 8;
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        to[(g + (k >> 1) * 8) * NT * 8 + n * 8 + 2 * c + (k & 1)] = sum.total(n, k);
  }
  size > 1 ? cluster.sync() : __syncthreads();
  for (int e = rank * blockDim.x + threadIdx.x; e < kElements;
       e += size * static_cast<int>(blockDim.x)) {
    Sum sum;
    for (int from = 0; from < size; ++from) {
      const float2* part = size > 1 ? cluster.map_shared_rank(group_sum, from) : group_sum;
      for (int i = 0; i < groups; ++i) add_sum(sum, part[i * kElements + e]);
    }
    p.store(first_row + e % (NT * 8), first_out + e / (NT * 8), sum);
  }
  if (size > 1) cluster.sync();  // nobody leaves while its sums are read
}

template <typename W, int MT, int NT, int KW>
void launch_spread(const Args& a, int cluster, CudaStream& s) {
  const int64_t bytes = int64_t{kGroups} / cluster * MT * kOuts * NT * 8 * 8;
  if (bytes > kSharedBlockBytes / 2)
    allow_shared(s, dense_fp32_spread_kernel<W, MT, NT, KW>, bytes);
  const dim3 grid(static_cast<unsigned>(blocks_of(a.out, MT * kOuts) * cluster),
                  static_cast<unsigned>(blocks_of(a.rows, NT * 8)));
  launch_programmatic(s, dense_fp32_spread_kernel<W, MT, NT, KW>, grid, MT * KW * 32, bytes,
                      cluster, a);
  s.launched("dense_fp32_spread", a.rows, a.in, a.out);
}

// ---------------------------------------------------------------- many outputs and rows
// A block: 64 outputs by 64 rows, 4 x 2 warps of 16 by 32. The sums of the groups so far wait in
// shared memory.
constexpr int kBlockWarps = 8, kBlockTiles = 4;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kResident = 1;  // two would spill
#else
constexpr int kResident = 2;
#endif
constexpr int64_t kBlockShared = int64_t{kBlockWarps} * 32 * kBlockTiles * 4 * 8;

template <typename W>
__global__ void __launch_bounds__(kBlockWarps * 32, kResident) dense_fp32_block_kernel(Args p) {
  extern __shared__ float2 so_far[];  // [value of a thread][thread]
  const int first_out = (blockIdx.x * 4 + (warp_of() & 3)) * kOuts;
  const int first_row = blockIdx.y * 64 + (warp_of() >> 2) * 32;
  const int g = lane_of() >> 2, c = lane_of() & 3;
  begin_programmatic();
  const Reader<W, kBlockTiles> reader(p, first_out, first_row);
  for (int group = 0; group < kGroups; ++group) {
    GroupSum<kBlockTiles> sum;
    reader.template add<1>(p.group_begin(group), p.group_begin(group + 1), sum);
#pragma unroll
    for (int n = 0; n < kBlockTiles; ++n)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float2& mine = so_far[(n * 4 + k) * kBlockWarps * 32 + threadIdx.x];
        Sum all;
        if (group > 0) {
          all.value = mine.x;
          all.rest = mine.y;
        }
        add_sum(all, sum.total(n, k));
        mine = make_float2(all.value, all.rest);
      }
  }
#pragma unroll
  for (int n = 0; n < kBlockTiles; ++n)
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 mine = so_far[(n * 4 + k) * kBlockWarps * 32 + threadIdx.x];
      Sum all;
      all.value = mine.x;
      all.rest = mine.y;
      p.store(first_row + n * 8 + 2 * c + (k & 1), first_out + g + (k >> 1) * 8, all);
    }
}

template <typename W>
void launch_block(const Args& a, CudaStream& s) {
  allow_shared(s, dense_fp32_block_kernel<W>, kBlockShared);
  const dim3 grid(static_cast<unsigned>(blocks_of(a.out, 4 * kOuts)),
                  static_cast<unsigned>(blocks_of(a.rows, 64)));
  launch_programmatic(s, dense_fp32_block_kernel<W>, grid, kBlockWarps * 32, kBlockShared, 1, a);
  s.launched("dense_fp32_block", a.rows, a.in, a.out);
}

constexpr int kFewRows = 32, kFewOuts = 48;

// Few rows: the groups over a cluster of eight, a warp each. Many rows and few outputs: a cluster
// of four.
template <typename W>
void launch(const Args& a, CudaStream& s) {
  if (a.rows <= 8) return launch_spread<W, 1, 1, 4>(a, 8, s);
  if (a.rows <= kFewRows) return launch_spread<W, 1, 2, 4>(a, 8, s);
  if (a.out <= kFewOuts) return launch_spread<W, 2, 4, 4>(a, 4, s);
  launch_block<W>(a, s);
}

}  // namespace

void dense_fp32(const DenseProduct& p, CudaStream& stream) {
  if (p.rows == 0) return;
  TF_CHECK_EQ(p.w->in % kChunk, 0);
  TF_CHECK_EQ(p.x_stride % 8, 0);
  TF_CHECK_LE(p.rows * p.x_stride, int64_t{0x7fffffff});
  TF_CHECK_LE(int64_t{p.w->out} * p.w->in, int64_t{0x7fffffff});
  const Args a = {p.w->data, p.x,        p.x_stride,
                  p.y,       p.y_stride, p.rows,
                  p.w->in,   p.w->out,   p.type == ValueType::kF32};
  if (p.w->layout == WeightLayout::kRowsF32) return launch<float>(a, stream);
  TF_CHECK(p.w->layout == WeightLayout::kRowsBf16);
  launch<uint16_t>(a, stream);
}

}  // namespace tensorfold::cuda
