// Dense products of many prompt rows on compute capability 9.0, decode and products in warps apart:
// tiles of 128 outputs by 256 rows.
//
// Four warps decode a step's weights into shared memory, in the order in which the matrix units
// take rows; two warpgroups only multiply, 64 outputs each. Neither waits for the other's
// instructions, which a product with its left operand in registers would make them do. A ring of
// stages between them holds rows and weights of a step; it goes on over the end of a tile. The two
// thread blocks of a cluster take the same rows and neighbouring outputs, and each copies half of
// the rows to both. Every output is one fp32 chain over the inputs, as in the other forms.
#include "kernels/cuda/cluster_copy.cuh"
#include "kernels/cuda/exl3_prefill_apart.h"
#include "kernels/cuda/prefill_rows.cuh"
#include "kernels/cuda/prefill_sums.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kTN = 160;
constexpr int kStages = 5;
constexpr int kMultiplyWarps = 8;
constexpr int kMultiplyThreads = kMultiplyWarps * 32;
constexpr int kDecodeWarps = 4;   // of a step
constexpr int kDecodeGroups = 2;  // that take every second step
constexpr int kThreads = kMultiplyThreads + kDecodeGroups * kDecodeWarps * 32;
constexpr int kCluster = 2;
constexpr int kRowBytes = kTN * 128;
constexpr int kStripBytes = 64 * 128;
constexpr int kStageBytes = kRowBytes + 2 * kStripBytes;
constexpr int kChunkRows = 64;  // of the sums in shared memory
constexpr int kSumBytes = kChunkRows * kPrefillSumStride * 4;
constexpr int kBarriers = kStages * kStageBytes + kSumBytes;
constexpr int kSharedBytes = kBarriers + 2 * kStages * 8;
static_assert(kSharedBytes <= 227 * 1024);

using ApartRing = Ring<kStages, kStageBytes>;

__host__ __device__ constexpr int apart_items(int padded_out, int rows) {
  return (padded_out / 128 + 1) / kCluster * ((rows + kTN - 1) / kTN);
}

// The cluster's rows, this block's outputs.
struct ApartTile {
  int first, column;
  bool live;  // a cluster's second block may have no outputs of its own
  __device__ __forceinline__ ApartTile(int item, int padded_out) {
    const int columns = padded_out / 128, pairs = (columns + 1) / kCluster;
    first = item / pairs * kTN;
    column = item % pairs * kCluster + static_cast<int>(cluster_rank());
    live = column < columns;
    column = min(column, columns - 1);
  }
};

// Where lane l of a decoding warp stores (or reads) a quarter of a 16 x 16 square: row l % 8 (+ 8),
// and the first or second of a product's two pieces.
__device__ __forceinline__ uint32_t square_row(int lane) {
  return static_cast<uint32_t>((lane & 7) + 8 * ((lane >> 3) & 1)) * 128;
}
__device__ __forceinline__ uint32_t square_piece(int lane) {
  return static_cast<uint32_t>((lane >> 4) ^ (lane & 7)) << 4;
}

// 2 K words: this lane's runs of two tile columns of a unit.
template <int K>
struct TwoRuns {
  static constexpr int kWide = K / 2;
  uint4 wide[kWide];
  uint2 narrow;  // of an odd width: after the others, or before them in the second half

  __device__ __forceinline__ void load(const std::byte* unit, int half, int lane) {
    const std::byte* at = unit + lane * 16;
    const int first = K % 2 == 0 ? half * kWide : half * (kWide + 1);
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      wide[i] = __ldg(reinterpret_cast<const uint4*>(at + (first + i) * 512));
    if constexpr (K % 2 != 0)
      narrow = __ldg(reinterpret_cast<const uint2*>(at + kWide * 512 + half * 8));
  }
  // Word i of the 2 K in order; i is a constant after unrolling.
  __device__ __forceinline__ uint32_t word(int i, int half) const {
    const uint32_t in_order = i < 4 * kWide ? part(i) : narrow_part(i - 4 * kWide);
    if constexpr (K % 2 == 0) return in_order;
    const uint32_t shifted = i < 2 ? narrow_part(i) : part(i - 2);
    return half == 0 ? in_order : shifted;
  }

 private:
  __device__ __forceinline__ uint32_t part(int i) const {
    const uint4& v = wide[i / 4];
    return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
  }
  __device__ __forceinline__ uint32_t narrow_part(int i) const {
    return i == 0 ? narrow.x : narrow.y;
  }
};

// 16 outputs by 64 inputs from a run, to the strip's rows from `to` on (this lane's row).
template <int K>
__device__ __forceinline__ void decode_run(const uint32_t (&run)[K + 1], uint32_t to,
                                           uint32_t piece) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const int v = 8 * s;
    const uint32_t a0 = mul1_pair(window_at(run, K, v), window_at(run, K, v + 1));
    const uint32_t a2 = mul1_pair(window_at(run, K, v + 2), window_at(run, K, v + 3));
    const uint32_t a1 = mul1_pair(window_at(run, K, v + 4), window_at(run, K, v + 5));
    const uint32_t a3 = mul1_pair(window_at(run, K, v + 6), window_at(run, K, v + 7));
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     to + (piece ^ static_cast<uint32_t>(s << 5))),
                 "r"(a0), "r"(a1), "r"(a2), "r"(a3)
                 : "memory");
  }
}

// One decoding warp: strip and half of a unit in every step of this block's tiles; its first lane,
// of the first warp, starts the copies of the rows.
template <int K>
struct Decoder {
  const Exl3DenseJob& job;
  int rows, group, strip, half, lane;
  const uint16_t* x;
  ApartRing ring;
  // What is loaded next, a step of the group ahead.
  int item, step;
  const std::byte* codes = nullptr;
  // What is copied next.
  const uint16_t* from = nullptr;
  uint32_t at = 0, bytes = 0, all = 0;

  __device__ __forceinline__ void load(TwoRuns<K>& runs) {
    const int steps = job.weight.padded_in / 64;
    if (step == group) {
      if (item >= apart_items(job.weight.padded_out, rows)) return;
      codes =
          step_codes(job.weight, 2 * ApartTile(item, job.weight.padded_out).column + strip, group);
    }
    runs.load(codes, half, lane);
    codes += kDecodeGroups * K * 512;
    step += kDecodeGroups;
    if (step >= steps) {
      step = group;
      item += static_cast<int>(gridDim.x) / kCluster;
    }
  }
  __device__ __forceinline__ void begin_rows(int tile_item) {
    constexpr int kShare = has_multicast() ? kTN / kCluster : kTN;
    const int first = ApartTile(tile_item, job.weight.padded_out).first;
    const int here = min(kTN, static_cast<int>(placed_rows(rows)) - first);
    const int begin = min(here, has_multicast() ? static_cast<int>(cluster_rank()) * kShare : 0);
    from = x + (group * placed_rows(rows) + first + begin) * 64;
    at = static_cast<uint32_t>(begin) * 128;
    bytes = static_cast<uint32_t>(min(here, begin + kShare) - begin) * 128;
    all = static_cast<uint32_t>(here) * 128;
  }
  __device__ __forceinline__ void copy_rows() {
    barrier_expect(ring.full(), all);
    if (bytes > 0) bulk_copy_to(ring.at() + at, from, bytes, ring.full(), 3);
    from += kDecodeGroups * placed_rows(rows) * 64;
  }
  __device__ __forceinline__ void next(TwoRuns<K>& runs) {
    barrier_wait(ring.empty(), ring.parity ^ 1);
    if (strip == 0 && half == 0 && lane == 0) copy_rows();
    const uint32_t to = ring.at() + kRowBytes + static_cast<uint32_t>(strip * kStripBytes) +
                        static_cast<uint32_t>(half * 32 * 128) + square_row(lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t run[K + 1];
#pragma unroll
      for (int j = 0; j < K; ++j) run[j + 1] = runs.word(i * K + j, half);
      run[0] = __shfl_sync(0xffffffffu, run[K], (lane + 28) & 31);
      decode_run<K>(run, to + i * 16 * 128, square_piece(lane));
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.full());
    load(runs);
    for (int i = 0; i < kDecodeGroups; ++i) ring.step();
  }
  __device__ __forceinline__ void run_all() {
    const int items = apart_items(job.weight.padded_out, rows), begin = item;
    TwoRuns<K> runs;
    load(runs);
    for (int i = group; i > 0; --i) ring.step();
    for (int i = begin; i < items; i += static_cast<int>(gridDim.x) / kCluster) {
      begin_rows(i);
#pragma unroll 1
      for (int s = group; s < job.weight.padded_in / 64; s += kDecodeGroups) next(runs);
    }
  }
};

// A step of a multiplying warpgroup: 64 outputs at `weights`, all rows at `stage`.
__device__ __forceinline__ void multiply_step(uint32_t stage, uint32_t weights, int warp, int lane,
                                              float (&d)[kTN / 2]) {
#if TF_WGMMA
  (void)warp;
  (void)lane;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int s = 0; s < 4; ++s)
    wgmma_f16(d, row_descriptor(weights) + 2 * s, row_descriptor(stage) + 2 * s);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  const int row = (lane & 7) + ((lane >> 4) << 3);
  const uint32_t mine = weights + static_cast<uint32_t>((warp & 3) * 16 * 128) + square_row(lane);
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    uint32_t a[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(mine + (square_piece(lane) ^ static_cast<uint32_t>(s << 5))));
#pragma unroll
    for (int j = 0; j < kTN / 16; ++j) {
      const int r = 16 * j + row, piece = (2 * s + ((lane >> 3) & 1)) ^ (r & 7);
      uint32_t b[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                   : "r"(stage + r * 128 + piece * 16));
      mma_f16(d + 8 * j, a, b[0], b[1]);
      mma_f16(d + 8 * j + 4, a, b[2], b[3]);
    }
  }
#endif
}
template <int kPending>
__device__ __forceinline__ void multiply_wait() {
#if TF_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// The tile's sums to outputs, 64 rows at a time through shared memory.
__device__ __forceinline__ void store_tile(const Exl3DenseJob& job, int rows, const ApartTile& tile,
                                           const float (&d)[kTN / 2], float* sums, int warp,
                                           int lane) {
  const int r = 8 * warp + (lane >> 2), q = lane & 3;
#pragma unroll
  for (int c = 0; c < kTN; c += kChunkRows) {
    part_meet<1, kMultiplyThreads>();
    store_sums<kTN, kChunkRows>(d, c, kPrefillSumStride, lane, sums + 16 * warp);
    part_meet<1, kMultiplyThreads>();
    float v[4][8];
    load_sums(sums + r * kPrefillSumStride + 8 * q, v);
    transform_sums(v, q);
    const int row = tile.first + c + r;
    if (c + r >= kTN || row >= rows) continue;
#pragma unroll
    for (int b = 0; b < 4; ++b) store_outputs(job, row, tile.column * 128 + 32 * b + 8 * q, v[b]);
  }
}

__device__ __forceinline__ void multiply_all(const Exl3DenseJob& job, int rows, ApartRing ring,
                                             float* sums, int warp, int lane) {
  const int items = apart_items(job.weight.padded_out, rows), steps = job.weight.padded_in / 64;
  const uint32_t weights = kRowBytes + static_cast<uint32_t>((warp >> 2) * kStripBytes);
  for (int item = static_cast<int>(blockIdx.x) / kCluster; item < items;
       item += static_cast<int>(gridDim.x) / kCluster) {
    float d[kTN / 2];
#pragma unroll
    for (int i = 0; i < kTN / 2; ++i) d[i] = 0;
    uint32_t last = 0;  // empty barrier of the step before
    const auto release = [&]() {
      if (lane < kCluster) barrier_arrive_at(last, static_cast<uint32_t>(lane));
    };
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      barrier_wait(ring.full(), ring.parity);
      multiply_step(ring.at(), ring.at() + weights, warp, lane, d);
      multiply_wait<1>();
      if (step > 0) release();
      last = ring.empty();
      ring.step();
    }
    multiply_wait<0>();
    release();
    const ApartTile tile(item, job.weight.padded_out);
    if (tile.live) store_tile(job, rows, tile, d, sums, warp, lane);
  }
}

__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    prefill_apart_kernel(const __grid_constant__ Exl3DenseJob job, int rows, const uint16_t* x) {
  if constexpr (!has_bulk_copies()) return;
  extern __shared__ __align__(1024) uint8_t smem[];
  const uint32_t base = shared_address(smem);
  const ApartRing ring(base, base + kBarriers);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (threadIdx.x == 0) {
    ApartRing r = ring;
    for (int s = 0; s < kStages; ++s) {
      barrier_init(r.full(), kDecodeWarps + 1);
      barrier_init(r.empty(), kCluster * kMultiplyWarps);
      r.step();
    }
    barrier_init_done();
  }
  cluster_meet();
  if (warp >= kMultiplyWarps) {
    const int group = (warp - kMultiplyWarps) / kDecodeWarps;
    const int part = (warp - kMultiplyWarps) % kDecodeWarps;
    switch (job.weight.half_bits / 2) {
#define TF_CASE(K)                                                                   \
  case K: {                                                                          \
    Decoder<K> decoder{job,      rows,      group,                                   \
                       part & 1, part >> 1, lane,                                    \
                       x,        ring,      static_cast<int>(blockIdx.x) / kCluster, \
                       group};                                                       \
    decoder.run_all();                                                               \
    break;                                                                           \
  }
      TF_CASE(2)
      TF_CASE(3)
      TF_CASE(4)
      TF_CASE(5)
      TF_CASE(6)
#undef TF_CASE
      default:
        break;
    }
  } else {
    multiply_all(job, rows, ring, reinterpret_cast<float*>(smem + kStages * kStageBytes), warp,
                 lane);
  }
  __syncwarp();
  cluster_meet();  // the other block writes here and arrives here until it is done
}

}  // namespace

cudaError_t exl3_prefill_apart(const Exl3DenseJob& job, int rows, const uint16_t* x, int sms,
                               cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      prefill_apart_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  const int items = apart_items(job.weight.padded_out, rows), most = sms / kCluster;
  prefill_apart_kernel<<<static_cast<unsigned>(kCluster * (items < most ? items : most)), kThreads,
                         kSharedBytes, stream>>>(job, rows, x);
  return cudaGetLastError();
}

}  // namespace tensorfold::cuda
