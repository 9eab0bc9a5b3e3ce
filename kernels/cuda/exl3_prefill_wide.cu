// Dense products of prompt rows on compute capability 9.0: tiles of 256 outputs by TN rows, 64
// outputs a warpgroup, one thread block a multiprocessor that goes from tile to tile.
//
// A thread of the first warp starts the copies of the rows, some lanes of the ninth those of the
// codes, some steps ahead and over the end of a tile too (prefill_ring.cuh). Bytes through the L2:
// a step of 256 x 128 products takes 26 KB. TN only decides how often a weight is decoded: every
// output is one fp32 chain over the inputs.
#include "kernels/cuda/exl3_prefill_wide.h"

#include "kernels/cuda/prefill_ring.cuh"
#include "kernels/cuda/prefill_rows.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
constexpr int kStrips = 4;      // of 64 outputs
constexpr int kColumns = 2;     // of 128
constexpr int kChunkRows = 64;  // of the sums in shared memory
constexpr int kSumStride = kColumns * 128 + 4;
constexpr int kSumBytes = kChunkRows * kSumStride * 4;
constexpr int kCodesWarp = kWarps / 2;

template <int TN>
constexpr int stage_bytes() {
  return PrefillStage<TN>::kRowBytes + kStrips * 6 * 512;
}
template <int TN, int kStages>
using WideRing = Ring<kStages, stage_bytes<TN>()>;

__host__ __device__ constexpr int wide_pairs(int padded_out) {
  return (padded_out / 128 + kColumns - 1) / kColumns;
}
__host__ __device__ constexpr int wide_items(int padded_out, int rows, int tile_rows) {
  return wide_pairs(padded_out) * ((rows + tile_rows - 1) / tile_rows);
}

// What is copied next, of a tile's rows and of a strip's codes; in shared memory, a thread each.
struct RowsPlace {
  RingPlace ring;
  int item, step;
  const uint16_t* from;
  uint32_t bytes;
};
struct CodesPlace {
  RingPlace ring;
  int item, step;
  const std::byte* from;
};
struct WidePlaces {
  RowsPlace rows;
  CodesPlace codes[kStrips];
};

// The copies of this block's tiles in order of steps. Codes may arrive before they are announced.
template <int TN, int kStages>
struct WideLoader {
  const Exl3DenseJob& job;
  const uint16_t* x;
  int rows;
  uint32_t base, barriers;
  WidePlaces& places;

  __device__ __forceinline__ void operator()() const {
    if (threadIdx.x == 0) next_rows(places.rows);
    const int strip = static_cast<int>(threadIdx.x) - kCodesWarp * 32;
    if (strip >= 0 && strip < kStrips) next_codes(places.codes[strip], strip);
  }
  __device__ __forceinline__ bool over(int item) const {
    return item >= wide_items(job.weight.padded_out, rows, TN);
  }
  template <typename Place>
  __device__ __forceinline__ void advance(Place& p, WideRing<TN, kStages>& ring) const {
    ring.step();
    p.ring = ring.place();
    if (++p.step < job.weight.padded_in / 64) return;
    p.step = 0;
    p.item += static_cast<int>(gridDim.x);
  }
  __device__ __forceinline__ void next_rows(RowsPlace& p) const {
    const int placed = static_cast<int>(placed_rows(rows));
    if (p.step == 0) {
      if (over(p.item)) return;
      const int first = p.item / wide_pairs(job.weight.padded_out) * TN;
      p.from = x + int64_t{first} * 64;
      p.bytes = static_cast<uint32_t>(min(TN, placed - first)) * 128;
    }
    WideRing<TN, kStages> ring(base, barriers, p.ring);
    barrier_wait(ring.empty(), ring.parity ^ 1);
    barrier_expect(ring.full(), p.bytes + kStrips * job.weight.half_bits * 256);
    bulk_copy(ring.at(), p.from, p.bytes, ring.full());
    p.from += int64_t{placed} * 64;
    advance(p, ring);
  }
  __device__ __forceinline__ void next_codes(CodesPlace& p, int strip) const {
    if (p.step == 0) {
      if (over(p.item)) return;
      // The last tile's second half may not be there: what its warps get is thrown away.
      const int pair = p.item % wide_pairs(job.weight.padded_out);
      p.from =
          step_codes(job.weight, min(pair * kStrips + strip, job.weight.padded_out / 64 - 1), 0);
    }
    WideRing<TN, kStages> ring(base, barriers, p.ring);
    const uint32_t bytes = job.weight.half_bits * 256;
    const uint32_t to =
        ring.at() + PrefillStage<TN>::kRowBytes + static_cast<uint32_t>(strip) * bytes;
    barrier_wait(ring.empty(), ring.parity ^ 1);
    bulk_copy(to, p.from, bytes, ring.full());
    p.from += bytes;
    advance(p, ring);
  }
};

// The tile's sums to outputs, 64 rows at a time through shared memory.
template <int TN>
__device__ __forceinline__ void store_tile(const Exl3DenseJob& job, int rows, int first, int column,
                                           const float (&d)[TN / 2], float* sums, int warp,
                                           int lane) {
  const int r = 8 * (warp & 7) + (lane >> 2), q = lane & 3, half = warp >> 3;
  const float* from = sums + r * kSumStride + 128 * half + 8 * q;
#pragma unroll
  for (int c = 0; c < TN; c += kChunkRows) {
    __syncthreads();
    store_sums<TN, kChunkRows, true>(d, c, kSumStride, lane, sums + 16 * warp);
    __syncthreads();
    float v[4][8];
    load_sums(from, v);
    transform_sums(v, q);
    const int row = first + c + r;
    if (c + r >= TN || row >= rows || column + half >= job.weight.padded_out / 128) continue;
#pragma unroll
    for (int b = 0; b < 4; ++b)
      store_outputs(job, row, (column + half) * 128 + 32 * b + 8 * q, v[b]);
  }
}

template <int TN, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_wide_kernel(const __grid_constant__ Exl3DenseJob job, int rows, const uint16_t* x) {
  if constexpr (!has_bulk_copies()) return;
  extern __shared__ __align__(1024) uint8_t smem[];
  __shared__ WidePlaces places;
  auto* sums = reinterpret_cast<float*>(smem + kStages * stage_bytes<TN>());
  const uint32_t base = shared_address(smem);
  WideRing<TN, kStages> ring(base, base + kStages * stage_bytes<TN>() + kSumBytes);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (threadIdx.x == 0) {
    init_ring(ring, kWarps);
    places = {};
    places.rows.item = static_cast<int>(blockIdx.x);
    for (CodesPlace& p : places.codes) p.item = static_cast<int>(blockIdx.x);
  }
  __syncthreads();
  const int pairs = wide_pairs(job.weight.padded_out);
  const int items = wide_items(job.weight.padded_out, rows, TN);
  const WideLoader<TN, kStages> load{job, x, rows, base, ring.barriers, places};
  const Turns<kThreads> turns{warp / (kWarps / 2)};
  turns.begin();
#pragma unroll 1
  for (int i = 0; i < kStages - 2; ++i) load();
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    float d[TN / 2];
    ring_product<TN>(job.weight.half_bits / 2, ring, turns, job.weight.padded_in / 64, warp, lane,
                     load, d);
    store_tile<TN>(job, rows, item / pairs * TN, item % pairs * kColumns, d, sums, warp, lane);
  }
}

template <int TN, int kStages>
cudaError_t run(const Exl3DenseJob& job, int rows, const uint16_t* x, int sms,
                cudaStream_t stream) {
  constexpr int kBytes =
      kStages * stage_bytes<TN>() + kSumBytes + WideRing<TN, kStages>::kBarrierBytes;
  static_assert(stage_bytes<TN>() % 1024 == 0 && kBytes + 2048 <= 227 * 1024);
  const cudaError_t error = cudaFuncSetAttribute(
      prefill_wide_kernel<TN, kStages>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int items = wide_items(job.weight.padded_out, rows, TN);
  prefill_wide_kernel<TN, kStages>
      <<<static_cast<unsigned>(items < sms ? items : sms), kThreads, kBytes, stream>>>(job, rows,
                                                                                       x);
  return cudaGetLastError();
}

// Cycles, roughly, of the tiles that the busiest multiprocessor takes: a step is 8 cycles a row on
// the matrix units and no less than its decode.
int64_t cost(const Exl3DenseJob& job, int rows, int tile_rows, int sms) {
  const int64_t rounds = (wide_items(job.weight.padded_out, rows, tile_rows) + sms - 1) / sms;
  const int64_t step = 8 * tile_rows > 750 ? 8 * tile_rows : 750;
  return rounds * (job.weight.padded_in / 64 * step + 24 * tile_rows + 1500);
}

}  // namespace

cudaError_t exl3_prefill_wide(const Exl3DenseJob& job, int rows, const uint16_t* x, int sms,
                              cudaStream_t stream) {
  const int64_t c64 = cost(job, rows, 64, sms), c112 = cost(job, rows, 112, sms),
                c128 = cost(job, rows, 128, sms);
  if (c128 <= c112 && c128 <= c64) return run<128, 5>(job, rows, x, sms, stream);
  if (c112 <= c64) return run<112, 5>(job, rows, x, sms, stream);
  return run<64, 6>(job, rows, x, sms, stream);
}

}  // namespace tensorfold::cuda
