// See bench_device.h.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tests/bench/kernels/bench_device.h"

namespace tensorfold::bench {
namespace {

constexpr int kChains = 8;
constexpr int kCeilingSteps = 4096;

__device__ uint32_t mixed(uint32_t seed, int64_t i) {
  uint64_t z =
      (seed + 1ull) * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(i) * 0xD1B54A32D192ED03ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return static_cast<uint32_t>(z >> 24);
}

__global__ void words_kernel(uint32_t* to, int64_t n, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x)
    to[i] = mixed(seed, i);
}

__global__ void scales_kernel(uint16_t* to, int64_t n, float scale, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t r = mixed(seed, i);
    const float v = scale * (0.5f + static_cast<float>(r & 0xffff) / 65536.0f);
    to[i] = __half_as_ushort(__float2half((r >> 31) != 0 ? -v : v));
  }
}

__global__ void f32_kernel(float* to, int64_t n, float center, float spread, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x)
    to[i] = center + spread * (static_cast<float>(mixed(seed, i) >> 8) / 8388608.0f - 1.0f);
}

__global__ void cache_kernel(uint32_t* to, int64_t n, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x)
    to[i] = (mixed(seed, i) & 0x37373737u) | 0x40404040u;
}

__global__ void normal_kernel(uint16_t* to, int64_t n, uint32_t seed, float scale) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    const float a = (static_cast<float>(mixed(seed, 2 * i) >> 8) + 1.0f) / 16777217.0f;
    const float b = static_cast<float>(mixed(seed, 2 * i + 1) >> 8) / 16777216.0f;
    const float v = scale * sqrtf(-2.0f * logf(a)) * cospif(2.0f * b);
    to[i] = __bfloat16_as_ushort(__float2bfloat16(v));
  }
}

__global__ void read_kernel(const uint4* from, int64_t n, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      v[k] = i + k * step < n ? __ldcs(from + i + k * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < 4; ++k) sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (sum == 0x12345678u) *sink = sum;
}

__global__ void __launch_bounds__(256) ceiling_kernel(uint32_t* sink) {
  uint32_t s[kChains], sum[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) {
    s[c] = threadIdx.x * 77u + blockIdx.x + c;
    sum[c] = 0;
  }
#pragma unroll 1
  for (int i = 0; i < kCeilingSteps; i += 4) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int c = 0; c < kChains; ++c) {
        s[c] *= 0x83DCD12Du;
        sum[c] = __dp4a(s[c], 0x01010101u, sum[c]);
      }
  }
  uint32_t all = 0;
#pragma unroll
  for (int c = 0; c < kChains; ++c) all ^= sum[c];
  if (all == 0x12345678u) *sink = all;
}

__global__ void nothing_kernel() {}

int multiprocessors() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

}  // namespace

cudaError_t fill_words(void* to, int64_t words, uint32_t seed, cudaStream_t stream) {
  words_kernel<<<2048, 256, 0, stream>>>(static_cast<uint32_t*>(to), words, seed);
  return cudaGetLastError();
}
cudaError_t fill_scales(uint16_t* to, int64_t count, float scale, uint32_t seed,
                        cudaStream_t stream) {
  scales_kernel<<<256, 256, 0, stream>>>(to, count, scale, seed);
  return cudaGetLastError();
}
cudaError_t fill_normal(uint16_t* to, int64_t count, uint32_t seed, cudaStream_t stream,
                        float scale) {
  normal_kernel<<<1024, 256, 0, stream>>>(to, count, seed, scale);
  return cudaGetLastError();
}
cudaError_t fill_f32(float* to, int64_t count, float center, float spread, uint32_t seed,
                     cudaStream_t stream) {
  f32_kernel<<<1024, 256, 0, stream>>>(to, count, center, spread, seed);
  return cudaGetLastError();
}
cudaError_t fill_cache(void* to, int64_t words, uint32_t seed, cudaStream_t stream) {
  cache_kernel<<<1024, 256, 0, stream>>>(static_cast<uint32_t*>(to), words, seed);
  return cudaGetLastError();
}
cudaError_t read_all(const void* from, int64_t bytes, uint32_t* sink, cudaStream_t stream) {
  read_kernel<<<static_cast<unsigned>(multiprocessors() * 8), 256, 0, stream>>>(
      static_cast<const uint4*>(from), bytes / 16, sink);
  return cudaGetLastError();
}
cudaError_t decode_ceiling(uint32_t* sink, int64_t* weights, cudaStream_t stream) {
  const int blocks = multiprocessors() * 8;
  *weights = int64_t{blocks} * 256 * kChains * kCeilingSteps;
  ceiling_kernel<<<static_cast<unsigned>(blocks), 256, 0, stream>>>(sink);
  return cudaGetLastError();
}
cudaError_t empty_kernel(cudaStream_t stream) {
  nothing_kernel<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}

}  // namespace tensorfold::bench
