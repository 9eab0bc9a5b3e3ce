// EXL3 weights outside the tuned instances, the decode that tests compare with the codec, and the
// change of order. Simple kernels: a value is decoded where it is used.
#include "kernels/cuda/exl3_dense.h"
#include "kernels/cuda/exl3_rotate.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kAnyRows = 8;
constexpr int kAnyThreads = 256;

// Position of (k, n) inside a tile in stream order.
__device__ __forceinline__ int stream_place(int k, int n) {
  const int lane = ((n & 7) << 2) | ((k & 7) >> 1);
  const int j = (k & 1) | (((k >> 3) & 1) << 1) | (((n >> 3) & 1) << 2);
  return lane * 8 + j;
}

// 128 outputs x 8 rows a block. Thread (n, h): output n, inputs 64 h .. 64 h + 63 of every block of
// 128, ascending; the two halves are added at the end.
__global__ void __launch_bounds__(kAnyThreads) exl3_any_kernel(Exl3DenseJob job, int rows_all) {
  __shared__ float x[kAnyRows][128];
  __shared__ float sums[kAnyRows][128];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int n = threadIdx.x & 127, half = threadIdx.x >> 7;
  const int first_row = blockIdx.y * kAnyRows, column = blockIdx.x * 128 + n;
  const int rows = min(kAnyRows, rows_all - first_row);
  float sum[kAnyRows] = {};
  for (int block = 0; block < job.weight.padded_in / 128; ++block) {
    __syncthreads();
    for (int r = warp; r < kAnyRows; r += kAnyThreads / 32) {
      float v[4] = {0, 0, 0, 0};
      if (r < rows)
        rotated_block(job.x + (first_row + r) * job.x_stride, job.in, job.weight.suh, block, lane,
                      v);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[r][4 * lane + i] = v[i];
    }
    __syncthreads();
    for (int k = 64 * half; k < 64 * half + 64; ++k) {
      const int kt = block * 8 + k / 16;
      const uint32_t state =
          exl3_state(job.weight, kt, column / 16, stream_place(k & 15, column & 15));
      const float w = __half2float(__ushort_as_half(
          static_cast<unsigned short>(codebook_value(state, job.weight.codebook))));
#pragma unroll
      for (int r = 0; r < kAnyRows; ++r) sum[r] = fmaf(w, x[r][k], sum[r]);
    }
  }
  if (half == 1) {
#pragma unroll
    for (int r = 0; r < kAnyRows; ++r) sums[r][n] = sum[r];
  }
  __syncthreads();
  if (half == 0) {
#pragma unroll
    for (int r = 0; r < kAnyRows; ++r) sums[r][n] += sum[r];
  }
  __syncthreads();
  for (int r = warp; r < rows; r += kAnyThreads / 32) {
    float v[4], scale[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = sums[r][4 * lane + i];
    hadamard_block(v, lane);
    const int at = blockIdx.x * 128 + 4 * lane;
    load_half4(job.weight.svh + at, scale);
    for (int i = 0; i < 4; ++i) {
      if (at + i >= job.out) continue;
      const int64_t to = (first_row + r) * job.y_stride + at + i;
      if (job.type == ValueType::kF32)
        static_cast<float*>(job.y)[to] = v[i] * scale[i];
      else
        static_cast<uint16_t*>(job.y)[to] = static_cast<uint16_t>(to_bf16(v[i] * scale[i]));
    }
  }
}

__global__ void unpack_any_kernel(Exl3Parts w, uint16_t* out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= int64_t{w.padded_in} * w.padded_out) return;
  const int k = static_cast<int>(i / w.padded_out), n = static_cast<int>(i % w.padded_out);
  const uint32_t state = exl3_state(w, k / 16, n / 16, stream_place(k & 15, n & 15));
  out[i] = static_cast<uint16_t>(codebook_value(state, w.codebook));
}

// One warp a unit, through window_at like the tuned products.
template <int K>
__global__ void unpack_lanes_kernel(Exl3Parts w, uint16_t* out) {
  const int lane = threadIdx.x & 31, units_in = w.padded_in / 64;
  const int unit = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (unit >= units_in * (w.padded_out / 64)) return;
  UnitWords<K> words;
  words.load(static_cast<const uint4*>(w.trellis) + int64_t{unit} * (K * 32) + lane,
             stream_policy(false));
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t run[K + 1];
#pragma unroll
    for (int j = 0; j < K; ++j) run[j + 1] = words.word(i * K + j);
    run[0] = __shfl_sync(0xffffffffu, run[K], (lane + 28) & 31);
#pragma unroll
    for (int v = 0; v < 32; ++v) {
      const int j = v & 7, k = 2 * (v >> 3) + (j & 1) + 8 * ((j >> 1) & 1);
      const int row = (unit % units_in) * 64 + 16 * t + k;
      const int col = (unit / units_in) * 64 + 16 * i + g + 8 * (j >> 2);
      out[int64_t{row} * w.padded_out + col] =
          static_cast<uint16_t>(codebook_value(window_at(run, K, v), w.codebook));
    }
  }
}

__global__ void repack_kernel(const uint32_t* from, int in, int out, int bits, uint32_t* to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= exl3_trellis_words(in, out, bits)) return;
  const int64_t tile = i / (8 * bits);
  const int word = static_cast<int>(i % (8 * bits)), columns = out / 16;
  const int kt = static_cast<int>(tile / columns), nt = static_cast<int>(tile % columns);
  to[exl3_lane_word(in, bits, kt, nt, word)] = from[i];
}

// Words of groups of 64 inputs from tile row 4 first_group on.
__global__ void repack_groups_kernel(const uint32_t* from, int64_t words, int first_group, int in,
                                     int out, int bits, uint32_t* to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= words) return;
  const int64_t tile = i / (8 * bits);
  const int word = static_cast<int>(i % (8 * bits)), columns = out / 16;
  const int kt = 4 * first_group + static_cast<int>(tile / columns);
  to[exl3_lane_word(in, bits, kt, static_cast<int>(tile % columns), word)] = from[i];
}

unsigned blocks_of(int64_t count, int threads) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}

}  // namespace

cudaError_t exl3_any(const Exl3DenseJob& job, int rows, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(job.weight.padded_out / 128), blocks_of(rows, kAnyRows));
  exl3_any_kernel<<<grid, kAnyThreads, 0, stream>>>(job, rows);
  return cudaGetLastError();
}

cudaError_t exl3_unpack(const Exl3Parts& w, uint16_t* out, bool run_time, cudaStream_t stream) {
  const int64_t values = int64_t{w.padded_in} * w.padded_out;
  if (run_time || w.order != Exl3Order::kLanes) {
    unpack_any_kernel<<<blocks_of(values, 256), 256, 0, stream>>>(w, out);
    return cudaGetLastError();
  }
  const unsigned blocks = blocks_of(values / 4096, 4);
  switch (w.half_bits / 2) {
#define TF_CASE(K)                                              \
  case K:                                                       \
    unpack_lanes_kernel<K><<<blocks, 128, 0, stream>>>(w, out); \
    break;
    TF_CASE(1)
    TF_CASE(2)
    TF_CASE(3)
    TF_CASE(4)
    TF_CASE(5)
    TF_CASE(6)
    TF_CASE(7)
    TF_CASE(8)
#undef TF_CASE
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

cudaError_t exl3_repack(const Exl3Parts& from, uint32_t* to, cudaStream_t stream) {
  if (from.half_bits % 2 != 0 || from.order != Exl3Order::kTiles) return cudaErrorInvalidValue;
  const int bits = from.half_bits / 2;
  const int64_t words = exl3_trellis_words(from.padded_in, from.padded_out, bits);
  repack_kernel<<<blocks_of(words, 256), 256, 0, stream>>>(
      static_cast<const uint32_t*>(from.trellis), from.padded_in, from.padded_out, bits, to);
  return cudaGetLastError();
}

cudaError_t exl3_repack_groups(const Exl3Parts& stored, const void* piece, int first, int count,
                               uint32_t* to, cudaStream_t stream) {
  const int bits = stored.half_bits / 2;
  const int64_t words = exl3_trellis_words(kExl3UnitSide * count, stored.padded_out, bits);
  repack_groups_kernel<<<blocks_of(words, 256), 256, 0, stream>>>(
      static_cast<const uint32_t*>(piece), words, first, stored.padded_in, stored.padded_out, bits,
      to);
  return cudaGetLastError();
}

}  // namespace tensorfold::cuda
