// Dense products (kernels/cuda/dense.h): a tile kernel for few rows and a blocked one for many,
// which give the same bits.
#include "kernels/cuda/dense.h"

#include "engine/base/check.h"
#include "kernels/cuda/dense_tile.cuh"
#include "kernels/cuda/ops.h"

namespace tensorfold::cuda {
namespace {

__device__ inline void store(void* y, int64_t at, float v, bool wide) {
  if (wide)
    static_cast<float*>(y)[at] = v;
  else
    static_cast<uint16_t*>(y)[at] = to_bf16(v);
}

// ---------------------------------------------------------------- few rows
struct TileArgs {
  const uint16_t* w;
  const uint16_t* x;
  int64_t x_stride;
  void* y;
  int64_t y_stride;
  int rows, in, out;
  bool wide;  // y is fp32
};

template <int kOuts>
__global__ void __launch_bounds__(256) dense_tile_kernel(TileArgs p) {
  extern __shared__ float sum[];
  const int first_out = blockIdx.x * kOuts, first_row = blockIdx.y * kTileRows;
  tile_product<kOuts>(
      p.w, p.in, p.out, first_out,
      [&](int i) -> const uint16_t* {
        return first_row + i < p.rows ? p.x + (first_row + i) * p.x_stride : nullptr;
      },
      sum);
  const int segments = dense_segments(p.in);
  for (int i = threadIdx.x; i < kTileRows * kOuts; i += blockDim.x) {
    const int r = first_row + i / kOuts, o = first_out + i % kOuts;
    if (r < p.rows && o < p.out)
      store(p.y, r * p.y_stride + o, tile_value<kOuts>(sum, segments, i), p.wide);
  }
}

// ---------------------------------------------------------------- many rows
// 128 rows x 64 outputs by 4 x 2 warps of 32 x 32, three chunks in flight. A chunk's operands lie
// in shared memory as 80-byte rows: 64 bytes of values, 16 to keep rows in different banks.
constexpr int kBlockRows = 128;
constexpr int kBlockOuts = 64;
constexpr int kStages = 3;
constexpr int kRowBytes = 80;
constexpr int kStageBytes = (kBlockRows + kBlockOuts) * kRowBytes;
constexpr int kBlockThreads = 256;
static_assert(kStages * kStageBytes <= kSharedBlockBytes);

__device__ inline void copy_async(void* shared, const void* global, bool present) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = present ? 16 : 0;  // the rest of the 16 becomes zero
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes));
}

__device__ inline void load_stage(const TileArgs& p, int first_row, int first_out, int chunk,
                                  std::byte* stage) {
  for (int i = threadIdx.x; i < (kBlockRows + kBlockOuts) * 4; i += kBlockThreads) {
    const int line = i >> 2, part = i & 3;
    const bool is_x = line < kBlockRows;
    const int index = is_x ? first_row + line : first_out + line - kBlockRows;
    const bool present = index < (is_x ? p.rows : p.out);
    const int64_t safe = present ? index : 0;
    const uint16_t* from = is_x ? p.x + safe * p.x_stride : p.w + safe * p.in;
    copy_async(stage + line * kRowBytes + part * 16, from + chunk * kChunk + part * 8, present);
  }
}

__global__ void __launch_bounds__(kBlockThreads, 1) dense_block_kernel(TileArgs p) {
  extern __shared__ __align__(16) std::byte stages[];
  const int first_out = blockIdx.x * kBlockOuts, first_row = blockIdx.y * kBlockRows;
  const int lane = lane_of(), g = lane >> 2, c = lane & 3;
  const int warp_row = (warp_of() >> 1) * 32, warp_out = (warp_of() & 1) * 32;
  const int chunks = p.in / kChunk, per = dense_segment_chunks(p.in);
  Sum current[2][4][4];
  float total[2][4][4] = {};
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < chunks) load_stage(p, first_row, first_out, s, stages + s * kStageBytes);
    asm volatile("cp.async.commit_group;");
  }
  for (int k = 0; k < chunks; ++k) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2));
    __syncthreads();
    const int next = k + kStages - 1;
    if (next < chunks)
      load_stage(p, first_row, first_out, next, stages + (next % kStages) * kStageBytes);
    asm volatile("cp.async.commit_group;");
    const std::byte* stage = stages + (k % kStages) * kStageBytes;
    uint4 a[2][2], b[4];
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        a[m][half] = *reinterpret_cast<const uint4*>(
            stage + (warp_row + m * 16 + half * 8 + g) * kRowBytes + c * 16);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      b[n] = *reinterpret_cast<const uint4*>(
          stage + (kBlockRows + warp_out + n * 8 + g) * kRowBytes + c * 16);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n) mma_chunk(current[m][n], a[m][0], a[m][1], b[n]);
    if ((k + 1) % per != 0 && k + 1 != chunks) continue;
    const bool first = k < per;  // the first segment is taken over, not added to zero
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float segment = current[m][n][i].total();
          total[m][n][i] = first ? segment : total[m][n][i] + segment;
          current[m][n][i] = Sum{};
        }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = first_row + warp_row + m * 16 + (i >> 1) * 8 + g;
        const int o = first_out + warp_out + n * 8 + c * 2 + (i & 1);
        if (r < p.rows && o < p.out) store(p.y, r * p.y_stride + o, total[m][n][i], p.wide);
      }
}

TileArgs args_of(const DenseProduct& p) {
  TF_CHECK_EQ(p.w->in % kChunk, 0);
  return {static_cast<const uint16_t*>(p.w->data),
          p.x,
          p.x_stride,
          p.y,
          p.y_stride,
          p.rows,
          p.w->in,
          p.w->out,
          p.type == ValueType::kF32};
}

constexpr int kFewTiles = 16;     // a GPU would be nearly empty: they are cut into four
constexpr int kTileRowsMax = 64;  // from here on the blocked kernel; it gives the same bits

}  // namespace

void dense(const DenseProduct& p, CudaStream& stream) {
  if (p.rows == 0) return;
  if (p.w->layout == WeightLayout::kRowsF32) return dense_fp32(p, stream);
  TF_CHECK(p.w->layout == WeightLayout::kRowsBf16);
  const TileArgs a = args_of(p);
#ifdef TF_PLANTED_FAULT  // tests: more than eight rows go to another order of summation
  if (p.rows > 8) return dense_fp32(p, stream);
#endif
  if (p.rows <= kTileRowsMax) {
    const int rows = blocks_of(a.rows, kTileRows), threads = dense_segments(a.in) * 32;
    const int outs = blocks_of(a.out, kTileOuts), bytes = tile_shared_bytes(a.in);
    if (outs * rows <= kFewTiles)
      dense_tile_kernel<kTileOutsLeast>
          <<<dim3(blocks_of(a.out, kTileOutsLeast), rows), threads, bytes, stream.handle()>>>(a);
    else
      dense_tile_kernel<kTileOuts><<<dim3(outs, rows), threads, bytes, stream.handle()>>>(a);
    return stream.launched("dense_tile", a.rows, a.in, a.out);
  }
  const dim3 grid(blocks_of(a.out, kBlockOuts), blocks_of(a.rows, kBlockRows));
  allow_shared(stream, dense_block_kernel, kStages * kStageBytes);
  dense_block_kernel<<<grid, kBlockThreads, kStages * kStageBytes, stream.handle()>>>(a);
  stream.launched("dense_block", a.rows, a.in, a.out);
}

}  // namespace tensorfold::cuda
