// Dense products of prompt rows on compute capability 9.0: tiles of 128 outputs by TN rows, one
// thread block a multiprocessor, two of them in a cluster.
//
// What limits the plain tile is the L2: 128 x 256 x 64 products need 37 KB, 7 TB/s at the speed of
// the matrix units. The two blocks of a cluster take the same rows and neighbouring outputs; each
// copies half of the rows to both. One thread starts the copies, some steps ahead and over the end
// of a tile too. TN only decides how often a weight is decoded: every output is one fp32 chain over
// the inputs.
#include "kernels/cuda/exl3_prefill_wide.h"

#include "kernels/cuda/prefill_ring.cuh"
#include "kernels/cuda/prefill_rows.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kCluster = 2;
constexpr int kChunkRows = 64;  // of the sums in shared memory
constexpr int kSumBytes = kChunkRows * kPrefillSumStride * 4;

template <int TN, int kStages>
constexpr int wide_bytes() {
  return kStages * PrefillStage<TN>::kBytes + kSumBytes + 2 * kStages * 8;
}

__host__ __device__ constexpr int wide_items(int columns, int rows, int tile_rows) {
  return (columns + 1) / kCluster * ((rows + tile_rows - 1) / tile_rows);
}

// Which tile: the cluster's rows, this block's outputs.
struct WideTile {
  int first, column;
  bool live;  // a cluster's second block may have no outputs of its own

  __device__ __forceinline__ WideTile(int item, int columns, int rank, int tile_rows) {
    const int pairs = (columns + 1) / kCluster;
    first = item / pairs * tile_rows;
    column = item % pairs * kCluster + rank;
    live = column < columns;
    column = min(column, columns - 1);
  }
};

// What a ring of a tile's stages is, followed by the sums and its barriers.
template <int TN, int kStages>
using WideRing =
    Ring<kStages, PrefillStage<TN>::kBytes, kStages * PrefillStage<TN>::kBytes + kSumBytes>;

// What is copied next, of a tile's rows and of its codes; in shared memory, a thread each.
struct RowsPlace {
  RingPlace ring;
  int item, step;
  const uint16_t* from;
  uint32_t at, bytes, all;  // this block's share: where in a stage, how much; both blocks' bytes
};
struct CodesPlace {
  RingPlace ring;
  int item, step;
  const std::byte* from[2];
};
struct WidePlaces {
  RowsPlace rows;
  CodesPlace codes;
};

// The copies of this block's tiles in order of steps: rows by a thread of the first warp, codes by
// one of the fifth. Bytes may arrive before they are announced.
template <int TN, int kStages>
struct WideLoader {
  const Exl3DenseJob& job;
  const uint16_t* x;
  int rows;
  uint32_t base;
  WidePlaces& places;

  __device__ __forceinline__ void operator()() const {
    if (threadIdx.x == 0) next_rows(places.rows);
    if (threadIdx.x == kThreads / 2) next_codes(places.codes);
  }
  __device__ __forceinline__ WideTile tile_of(int item) const {
    return WideTile(item, job.weight.padded_out / 128, static_cast<int>(cluster_rank()), TN);
  }
  __device__ __forceinline__ bool over(int item) const {
    return item >= wide_items(job.weight.padded_out / 128, rows, TN);
  }
  template <typename Place>
  __device__ __forceinline__ void advance(Place& p, WideRing<TN, kStages>& ring) const {
    ring.step();
    p.ring = ring.place();
    if (++p.step < job.weight.padded_in / 64) return;
    p.step = 0;
    p.item += static_cast<int>(gridDim.x) / kCluster;
  }
  __device__ __forceinline__ void next_rows(RowsPlace& p) const {
    if (p.step == 0) {
      if (over(p.item)) return;
      constexpr int kShare = has_multicast() ? TN / kCluster : TN;
      const int rank = has_multicast() ? static_cast<int>(cluster_rank()) : 0;
      const int first = tile_of(p.item).first;
      const int here = min(TN, static_cast<int>(placed_rows(rows)) - first);
      const int begin = min(here, rank * kShare);
      p.from = x + int64_t{first + begin} * 64;
      p.at = static_cast<uint32_t>(begin) * 128;
      p.bytes = static_cast<uint32_t>(min(here, begin + kShare) - begin) * 128;
      p.all = static_cast<uint32_t>(here) * 128;
    }
    WideRing<TN, kStages> ring(base, p.ring);
    barrier_wait(ring.empty(), ring.parity ^ 1);
    barrier_expect(ring.full(), p.all + 2 * job.weight.half_bits * 256);
    if (p.bytes > 0) bulk_copy_to(ring.at() + p.at, p.from, p.bytes, ring.full(), 3);
    p.from += placed_rows(rows) * 64;
    advance(p, ring);
  }
  __device__ __forceinline__ void next_codes(CodesPlace& p) const {
    if (p.step == 0) {
      if (over(p.item)) return;
      const int strip = 2 * tile_of(p.item).column;
      p.from[0] = step_codes(job.weight, strip, 0);
      p.from[1] = step_codes(job.weight, strip + 1, 0);
    }
    WideRing<TN, kStages> ring(base, p.ring);
    const uint32_t bytes = job.weight.half_bits * 256;
    const uint32_t to = ring.at() + PrefillStage<TN>::kRowBytes;
    barrier_wait(ring.empty(), ring.parity ^ 1);
    bulk_copy(to, p.from[0], bytes, ring.full());
    bulk_copy(to + bytes, p.from[1], bytes, ring.full());
    p.from[0] += bytes;
    p.from[1] += bytes;
    advance(p, ring);
  }
};

// Eight neighbouring outputs of a row from v, scaled.
__device__ __forceinline__ void store_outputs(const Exl3DenseJob& job, int64_t row, int at,
                                              const float (&v)[8]) {
  float scale[2][4], y[8];
  load_half4(job.weight.svh + at, scale[0]);
  load_half4(job.weight.svh + at + 4, scale[1]);
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = v[i] * kHadamard128Scale * scale[i / 4][i % 4];
  const int64_t to = row * job.y_stride + at;
  if (job.type == ValueType::kF32) {
    float* out = static_cast<float*>(job.y) + to;
    if (at + 8 <= job.out && (reinterpret_cast<uintptr_t>(out) & 15) == 0) {
      reinterpret_cast<float4*>(out)[0] = make_float4(y[0], y[1], y[2], y[3]);
      reinterpret_cast<float4*>(out)[1] = make_float4(y[4], y[5], y[6], y[7]);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (at + i < job.out) out[i] = y[i];
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(job.y) + to;
  uint32_t two[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) two[i] = bf16_bits(y[2 * i]) | bf16_bits(y[2 * i + 1]) << 16;
  if (at + 8 <= job.out && (reinterpret_cast<uintptr_t>(out) & 15) == 0) {
    *reinterpret_cast<uint4*>(out) = make_uint4(two[0], two[1], two[2], two[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (at + i < job.out) out[i] = static_cast<uint16_t>(two[i / 2] >> (16 * (i % 2)));
}

__device__ __forceinline__ void butterfly(float& a, float& b) {
  const float sum = a + b;
  b = a - b;
  a = sum;
}

// The Hadamard of a row's 128 sums by four lanes: lane q has sums 8 q + 32 b + (0..7); the step of
// 8 was made before.
__device__ __forceinline__ void transform(float (&v)[4][8], int q) {
#pragma unroll
  for (int b = 0; b < 4; ++b)
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if ((i & step) == 0) butterfly(v[b][i], v[b][i + step]);
  const float sign = (q & 2) != 0 ? -1.0f : 1.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    butterfly(v[0][i], v[1][i]);
    butterfly(v[2][i], v[3][i]);
    butterfly(v[0][i], v[2][i]);
    butterfly(v[1][i], v[3][i]);
#pragma unroll
    for (int b = 0; b < 4; ++b)
      v[b][i] = fmaf(v[b][i], sign, __shfl_xor_sync(0xffffffffu, v[b][i], 2));
  }
}

// The tile's sums to outputs, 64 rows at a time through shared memory.
template <int TN>
__device__ __forceinline__ void store_tile(const Exl3DenseJob& job, int rows, const WideTile& tile,
                                           const float (&d)[TN / 2], float* sums, int warp,
                                           int lane) {
  constexpr int kStride = kPrefillSumStride;
  float* to = sums + 2 * (lane & 3) * kStride + 16 * warp + (lane >> 2);
  const int r = 8 * warp + (lane >> 2), q = lane & 3;
  const float* from = sums + r * kStride + 8 * q;
#pragma unroll
  for (int c = 0; c < (TN + kChunkRows - 1) / kChunkRows; ++c) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kChunkRows / 8; ++j) {
      const int i = 4 * (c * kChunkRows / 8 + j);
      if (i >= TN / 2) break;
      to[8 * j * kStride] = d[i] + d[i + 2];
      to[8 * j * kStride + 8] = d[i] - d[i + 2];
      to[(8 * j + 1) * kStride] = d[i + 1] + d[i + 3];
      to[(8 * j + 1) * kStride + 8] = d[i + 1] - d[i + 3];
    }
    __syncthreads();
    float v[4][8];
#pragma unroll
    for (int b = 0; b < 4; ++b)
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const float4 s = *reinterpret_cast<const float4*>(from + 32 * b + i);
        v[b][i] = s.x;
        v[b][i + 1] = s.y;
        v[b][i + 2] = s.z;
        v[b][i + 3] = s.w;
      }
    transform(v, q);
    const int row = c * kChunkRows + r;
    if (row >= TN || tile.first + row >= rows) continue;
#pragma unroll
    for (int b = 0; b < 4; ++b)
      store_outputs(job, tile.first + row, tile.column * 128 + 32 * b + 8 * q, v[b]);
  }
}

template <int TN, int kStages>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    prefill_wide_kernel(const __grid_constant__ Exl3DenseJob job, int rows, const uint16_t* x) {
  if constexpr (!has_bulk_copies()) return;
  extern __shared__ __align__(1024) uint8_t smem[];
  __shared__ WidePlaces places;
  auto* sums = reinterpret_cast<float*>(smem + kStages * PrefillStage<TN>::kBytes);
  WideRing<TN, kStages> ring(shared_address(smem));
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int begin = static_cast<int>(blockIdx.x) / kCluster, each = gridDim.x / kCluster;
  if (threadIdx.x == 0) {
    init_ring(ring, kCluster * kWarps);
    places.rows.ring = places.codes.ring = {};
    places.rows.item = places.codes.item = begin;
    places.rows.step = places.codes.step = 0;
  }
  cluster_meet();
  const int columns = job.weight.padded_out / 128, items = wide_items(columns, rows, TN);
  const WideLoader<TN, kStages> load{job, x, rows, ring.base, places};
#pragma unroll 1
  for (int i = 0; i < kRingAhead<kStages>; ++i) load();
  for (int item = begin; item < items; item += each) {
    const WideTile tile(item, columns, static_cast<int>(cluster_rank()), TN);
    float d[TN / 2];
    ring_product<TN, true>(job.weight.half_bits / 2, ring, 0, job.weight.padded_in / 64, warp, lane,
                           load, d);
    if (tile.live) store_tile<TN>(job, rows, tile, d, sums, warp, lane);
  }
  cluster_meet();  // the other block writes here and arrives here until it is done
}

template <int TN, int kStages>
cudaError_t run(const Exl3DenseJob& job, int rows, const uint16_t* x, int sms,
                cudaStream_t stream) {
  constexpr int kBytes = wide_bytes<TN, kStages>();
  static_assert(kBytes <= 227 * 1024);
  const cudaError_t error = cudaFuncSetAttribute(
      prefill_wide_kernel<TN, kStages>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int items = wide_items(job.weight.padded_out / 128, rows, TN);
  const auto grid =
      static_cast<unsigned>(kCluster * (items < sms / kCluster ? items : sms / kCluster));
  prefill_wide_kernel<TN, kStages><<<grid, kThreads, kBytes, stream>>>(job, rows, x);
  return cudaGetLastError();
}

// Cycles, roughly: of the tiles that the busiest multiprocessor takes. A step is 4 cycles a row on
// the matrix units and no less than its decode; the end of a tile has 12 cycles a row and a start.
int64_t cost(const Exl3DenseJob& job, int rows, int tile_rows, int sms) {
  const int64_t items = wide_items(job.weight.padded_out / 128, rows, tile_rows);
  const int64_t rounds = (items + sms / kCluster - 1) / (sms / kCluster);
  const int64_t step = 4 * tile_rows > 450 ? 4 * tile_rows : 450;
  return rounds * (job.weight.padded_in / 64 * step + 12 * tile_rows + 1500);
}

}  // namespace

cudaError_t exl3_prefill_wide(const Exl3DenseJob& job, int rows, const uint16_t* x, int sms,
                              cudaStream_t stream) {
  const int64_t c64 = cost(job, rows, 64, sms), c160 = cost(job, rows, 160, sms),
                c256 = cost(job, rows, 256, sms);
  if (c256 <= c160 && c256 <= c64) return run<256, 5>(job, rows, x, sms, stream);
  if (c160 <= c64) return run<160, 7>(job, rows, x, sms, stream);
  return run<64, 8>(job, rows, x, sms, stream);
}

}  // namespace tensorfold::cuda
