// Gate, up and down of prompt rows on compute capability 9.0 (moe_prefill_args.cuh).
//
// Items are (entry of at most TN rows of one expert, 128 outputs). Gate and up share a thread
// block, two warpgroups and a ring of stages each; down has two blocks a multiprocessor. Warpgroups
// meet only at the end of an item (prefill_ring.cuh). Copies go on over it: a thread of a matrix's
// first warp starts those of the rows, two lanes of its fifth those of the codes. Only rows that
// are there are copied.
#include "kernels/cuda/moe_prefill_args.cuh"
#include "kernels/cuda/prefill_ring.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kMatrixWarps = 8;
constexpr int kMatrixThreads = kMatrixWarps * 32;
constexpr int kChunkRows = 16;  // of the sums in shared memory
constexpr int kSumBytes = kChunkRows * kPrefillSumStride * 4;

// What is copied next, in shared memory, a thread each.
struct CopyPlace {
  RingPlace ring;
  int item, step;
  const std::byte* from;
  uint32_t bytes, all;
};
struct CopyPlaces {
  CopyPlace rows, codes[2];
};

// Shared memory of kMatrices matrices: stages, sums, barriers, places.
template <int TN, int kStages, int kMatrices>
struct Memory {
  using MatrixRing = Ring<kStages, kMatrices * PrefillStage<TN>::kBytes>;
  static constexpr int kSums = kStages * kMatrices * PrefillStage<TN>::kBytes;
  static constexpr int kBarriers = kSums + kMatrices * kSumBytes;
  static constexpr int kPlaces = kBarriers + kMatrices * MatrixRing::kBarrierBytes;
  static constexpr int kBytes = kPlaces + kMatrices * static_cast<int>(sizeof(CopyPlaces));

  static __device__ __forceinline__ MatrixRing ring(uint32_t base, int matrix) {
    return MatrixRing(base + matrix * PrefillStage<TN>::kBytes,
                      base + kBarriers + matrix * MatrixRing::kBarrierBytes);
  }
};

// The copies of one matrix of this block's items, in order of steps. kDown: rows are z and the
// matrix is w2; else `matrix` 0 is w1, 1 is w3.
template <int TN, int kStages, int kMatrices>
struct ItemLoader {
  static constexpr bool kDown = kMatrices == 1;
  using MatrixRing = typename Memory<TN, kStages, kMatrices>::MatrixRing;
  const MoePrefillArgs& a;
  uint32_t base, barriers;
  int matrix, columns;
  CopyPlaces& places;

  __device__ __forceinline__ void operator()() const {
    const int thread = static_cast<int>(threadIdx.x) % kMatrixThreads;
    if (thread == 0) next(places.rows, -1);
    const int strip = thread - kMatrixThreads / 2;
    if (strip == 0 || strip == 1) next(places.codes[strip], strip);
  }
  __device__ __forceinline__ int steps() const {
    return (kDown ? a.inner_blocks : a.hidden_blocks) * 2;
  }
  // strip: of the item's 128 outputs; -1: its rows.
  __device__ __forceinline__ bool begin_item(CopyPlace& p, int strip) const {
    if (p.item >= a.at<int32_t>(a.l.counts)[0] * columns) return false;
    const MoePrefillEntry entry = a.at<MoePrefillEntry>(a.l.entries)[p.item / columns];
    const uint32_t codes = (kDown ? entry.bits2 : matrix == 0 ? entry.bits1 : entry.bits3) * 512u;
    if (strip < 0) {
      const uint16_t* rows = kDown ? a.at<uint16_t>(a.l.zq) : a.rotated(matrix);
      p.from = reinterpret_cast<const std::byte*>(rows + int64_t{entry.first} * 64);
      p.bytes = static_cast<uint32_t>(placed_rows(entry.count)) * 128;
      p.all = p.bytes + 2 * codes;
    } else {
      const void* trellis = kDown ? entry.w2 : matrix == 0 ? entry.w1 : entry.w3;
      const int64_t unit = int64_t{2 * (p.item % columns) + strip} * steps();
      p.from = static_cast<const std::byte*>(trellis) + unit * codes;
      p.bytes = codes;
    }
    return true;
  }
  __device__ __forceinline__ void next(CopyPlace& p, int strip) const {
    if (p.step == 0 && !begin_item(p, strip)) return;
    MatrixRing ring(base, barriers, p.ring);
    uint32_t to = ring.at();
    if (strip >= 0) to += PrefillStage<TN>::kRowBytes + static_cast<uint32_t>(strip) * p.bytes;
    barrier_wait(ring.empty(), ring.parity ^ 1);
    if (strip < 0) barrier_expect(ring.full(), p.all);
    bulk_copy(to, p.from, p.bytes, ring.full());
    p.from += strip < 0 ? a.l.positions * 128 : int64_t{p.bytes};
    ring.step();
    p.ring = ring.place();
    if (++p.step < steps()) return;
    p.step = 0;
    p.item += static_cast<int>(gridDim.x);
  }
};

// Barriers and places of every matrix, by the first thread; then the block meets.
template <int TN, int kStages, int kMatrices>
__device__ __forceinline__ CopyPlaces* init_memory(uint8_t* smem) {
  using Mem = Memory<TN, kStages, kMatrices>;
  auto* places = reinterpret_cast<CopyPlaces*>(smem + Mem::kPlaces);
  if (threadIdx.x == 0) {
    for (int m = 0; m < kMatrices; ++m) {
      init_ring(Mem::ring(shared_address(smem), m), kMatrixWarps);
      places[m] = {};
      places[m].rows.item = static_cast<int>(blockIdx.x);
      for (CopyPlace& p : places[m].codes) p.item = static_cast<int>(blockIdx.x);
    }
  }
  __syncthreads();
  return places;
}

template <int TN, int kStages>
__global__ void __launch_bounds__(2 * kMatrixThreads, 1)
    wide_gate_up_kernel(const __grid_constant__ MoePrefillArgs a) {
  if constexpr (!has_bulk_copies()) return;
  extern __shared__ __align__(1024) uint8_t smem[];
  using Mem = Memory<TN, kStages, 2>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, matrix = warp / kMatrixWarps;
  CopyPlaces* places = init_memory<TN, kStages, 2>(smem);
  auto* sums = reinterpret_cast<float*>(smem + Mem::kSums);
  typename Mem::MatrixRing ring = Mem::ring(shared_address(smem), matrix);
  const int columns = a.inner_blocks;
  const ItemLoader<TN, kStages, 2> load{a,      ring.base, ring.barriers,
                                        matrix, columns,   places[matrix]};
  const Turns<2 * kMatrixThreads> turns{matrix};
  turns.begin();
#pragma unroll 1
  for (int i = 0; i < kStages - 2; ++i) load();
  const int items = a.at<int32_t>(a.l.counts)[0] * columns;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const MoePrefillEntry* entry = a.at<MoePrefillEntry>(a.l.entries) + item / columns;
    const int column = item % columns, first = entry->first, count = entry->count;
    float d[TN / 2];
    ring_product<TN>(matrix == 0 ? entry->bits1 : entry->bits3, ring, turns, a.hidden_blocks * 2,
                     warp % kMatrixWarps, lane, load, d);
    const MoeExpertExl3& e = a.p.expert[entry->expert];
#pragma unroll
    for (int c = 0; c < TN; c += kChunkRows) {
      if (c >= count) break;
      __syncthreads();
      store_sums<TN, kChunkRows, false>(
          d, c, kPrefillSumStride, lane,
          sums + matrix * kChunkRows * kPrefillSumStride + 16 * (warp % kMatrixWarps));
      __syncthreads();
      if (c + warp >= count) continue;
      const float* at = sums + warp * kPrefillSumStride + 4 * lane;
      float g[4], u[4];
      load_float4(at, g);
      load_float4(at + kChunkRows * kPrefillSumStride, u);
      moe_swiglu(a, e, first + c + warp, column, lane, g, u);
    }
  }
}

template <int TN, int kStages>
__global__ void __launch_bounds__(kMatrixThreads, 2)
    wide_down_kernel(const __grid_constant__ MoePrefillArgs a) {
  if constexpr (!has_bulk_copies()) return;
  extern __shared__ __align__(1024) uint8_t smem[];
  using Mem = Memory<TN, kStages, 1>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  CopyPlaces* places = init_memory<TN, kStages, 1>(smem);
  auto* sums = reinterpret_cast<float*>(smem + Mem::kSums);
  typename Mem::MatrixRing ring = Mem::ring(shared_address(smem), 0);
  const int columns = a.hidden_blocks;
  const ItemLoader<TN, kStages, 1> load{a, ring.base, ring.barriers, 0, columns, *places};
  const Turns<kMatrixThreads> turns{warp / (kMatrixWarps / 2)};
  turns.begin();
#pragma unroll 1
  for (int i = 0; i < kStages - 2; ++i) load();
  const int items = a.at<int32_t>(a.l.counts)[0] * columns;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const MoePrefillEntry* entry = a.at<MoePrefillEntry>(a.l.entries) + item / columns;
    const int column = item % columns, first = entry->first, count = entry->count;
    float d[TN / 2];
    ring_product<TN>(entry->bits2, ring, turns, a.inner_blocks * 2, warp, lane, load, d);
    float scale[4];
    load_half4(a.p.expert[entry->expert].w2.svh + column * 128 + 4 * lane, scale);
#pragma unroll
    for (int c = 0; c < TN; c += kChunkRows) {
      if (c >= count) break;
      __syncthreads();
      store_sums<TN, kChunkRows, false>(d, c, kPrefillSumStride, lane, sums + 16 * warp);
      __syncthreads();
#pragma unroll
      for (int r = 0; r < kChunkRows; r += kMatrixWarps) {
        if (c + r + warp >= count) break;
        float v[4];
        load_float4(sums + (r + warp) * kPrefillSumStride + 4 * lane, v);
        moe_store_down(a, scale, first + c + r + warp, column, lane, v);
      }
    }
  }
}

template <typename Kernel>
cudaError_t launch(Kernel kernel, int bytes, int blocks, int threads, const MoePrefillArgs& a,
                   cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
           static_cast<size_t>(bytes), stream>>>(a);
  return cudaGetLastError();
}

template <int TN, int kGateStages, int kDownStages>
cudaError_t run(const MoePrefillArgs& a, int sms, cudaStream_t stream, const char** where) {
  constexpr int kGateBytes = Memory<TN, kGateStages, 2>::kBytes;
  constexpr int kDownBytes = Memory<TN, kDownStages, 1>::kBytes;
  static_assert(kGateBytes <= 227 * 1024 && kDownBytes <= 113 * 1024);
  static_assert(PrefillStage<TN>::kBytes % 1024 == 0);
  if (where != nullptr) *where = "moe_prefill: gate and up";
  const cudaError_t error =
      launch(wide_gate_up_kernel<TN, kGateStages>, kGateBytes, sms, 2 * kMatrixThreads, a, stream);
  if (error != cudaSuccess) return error;
  if (where != nullptr) *where = "moe_prefill: down";
  return launch(wide_down_kernel<TN, kDownStages>, kDownBytes, 2 * sms, kMatrixThreads, a, stream);
}

}  // namespace

cudaError_t moe_prefill_wide(const MoePrefillArgs& a, int sms, cudaStream_t stream,
                             const char** where) {
  switch (a.entry_rows) {
    case 32:
      return run<32, 8, 8>(a, sms, stream, where);
    case 48:
      return run<48, 7, 7>(a, sms, stream, where);
    case 64:
      return run<64, 7, 7>(a, sms, stream, where);
    case 96:
      return run<96, 5, 5>(a, sms, stream, where);
    case 128:
      return run<128, 4, 4>(a, sms, stream, where);
    case 160:
      return run<160, 4, 4>(a, sms, stream, where);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace tensorfold::cuda
