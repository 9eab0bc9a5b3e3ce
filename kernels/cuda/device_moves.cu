// Moving and adding whole buffers (Device::keep_rows, add, sum_parts, narrow,
// interleave).
#include <cuda_runtime.h>

#include "engine/base/check.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ops.h"

namespace tensorfold::cuda {
namespace {

constexpr int kRowsAtOnce = 8;  // read before the first of them is written

// A thread moves one column of every row, rows ascending. A row is written after all that are read
// from its place: source[r] >= r.
template <typename T>
__global__ void keep_rows_kernel(T* data, int64_t columns, const int32_t* source, int rows) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  for (int first = 0; first < rows; first += kRowsAtOnce) {
    T values[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i)
      if (first + i < rows) values[i] = data[source[first + i] * columns + column];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i)
      if (first + i < rows) data[(first + i) * columns + column] = values[i];
  }
}

template <typename T>
void launch_keep_rows(void* data, int64_t row_bytes, const int32_t* source, int rows,
                      CudaStream& stream) {
  constexpr int kThreads = 64;
  const int64_t columns = row_bytes / static_cast<int64_t>(sizeof(T));
  keep_rows_kernel<T><<<blocks_of(columns, kThreads), kThreads, 0, stream.handle()>>>(
      static_cast<T*>(data), columns, source, rows);
  stream.launched("keep_rows", rows, row_bytes);
}

__global__ void add_kernel(float* y, const float* x, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) y[i] += x[i];
}

__device__ inline float4 quad(const float4* parts, int64_t i) { return parts[i]; }
__device__ inline float4 quad(const uint2* parts, int64_t i) {
  const uint2 v = parts[i];
  return {bf16_low(v.x), bf16_high(v.x), bf16_low(v.y), bf16_high(v.y)};
}

// Four values a thread; the order of the sum is the ranks'. T: four values of a part.
template <typename T>
__global__ void sum_parts_kernel(float4* y, const T* parts, int ranks, int64_t quads) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= quads) return;
  float4 sum = quad(parts, i);
  for (int r = 1; r < ranks; ++r) {
    const float4 part = quad(parts, r * quads + i);
    sum.x += part.x;
    sum.y += part.y;
    sum.z += part.z;
    sum.w += part.w;
  }
  y[i] = sum;
}

__global__ void narrow_kernel(uint16_t* y, const float* x, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) y[i] = to_bf16(x[i]);
}

// A thread moves one piece of every rank's row.
template <typename T>
__global__ void interleave_kernel(T* to, const T* parts, int ranks, int rows, int64_t columns) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  const int row = static_cast<int>(blockIdx.y);
  for (int r = 0; r < ranks; ++r)
    to[(int64_t{row} * ranks + r) * columns + column] =
        parts[(int64_t{r} * rows + row) * columns + column];
}

template <typename T>
void launch_interleave(void* to, const void* parts, int ranks, int rows, int64_t bytes,
                       CudaStream& stream) {
  constexpr int kThreads = 128;
  const int64_t columns = bytes / static_cast<int64_t>(sizeof(T));
  const dim3 grid(static_cast<unsigned>(blocks_of(columns, kThreads)), static_cast<unsigned>(rows));
  interleave_kernel<T><<<grid, kThreads, 0, stream.handle()>>>(
      static_cast<T*>(to), static_cast<const T*>(parts), ranks, rows, columns);
  stream.launched("interleave", rows, bytes, ranks);
}

}  // namespace

void sum_parts(float* y, const void* parts, ValueType type, int ranks, int64_t count,
               CudaStream& stream) {
  constexpr int kThreads = 256;
  TF_CHECK(count % 4 == 0);
  if (count == 0) return;
  const int64_t quads = count / 4;
  const int blocks = blocks_of(quads, kThreads);
  auto* to = reinterpret_cast<float4*>(y);
  if (type == ValueType::kF32)
    sum_parts_kernel<<<blocks, kThreads, 0, stream.handle()>>>(
        to, static_cast<const float4*>(parts), ranks, quads);
  else
    sum_parts_kernel<<<blocks, kThreads, 0, stream.handle()>>>(to, static_cast<const uint2*>(parts),
                                                               ranks, quads);
  stream.launched("sum_parts", count, ranks);
}

void narrow(uint16_t* y, const float* x, int64_t count, CudaStream& stream) {
  constexpr int kThreads = 256;
  if (count == 0) return;
  narrow_kernel<<<blocks_of(count, kThreads), kThreads, 0, stream.handle()>>>(y, x, count);
  stream.launched("narrow", count);
}

void interleave(void* to, const void* parts, int ranks, int rows, int64_t bytes,
                CudaStream& stream) {
  TF_CHECK(rows <= 65535);
  if (rows == 0 || bytes == 0) return;
  if (bytes % 16 == 0) return launch_interleave<uint4>(to, parts, ranks, rows, bytes, stream);
  launch_interleave<uint8_t>(to, parts, ranks, rows, bytes, stream);
}

void keep_rows(void* data, int64_t row_bytes, const int32_t* source, int rows, CudaStream& stream) {
  if (rows == 0) return;
  if (row_bytes % 16 == 0) return launch_keep_rows<uint4>(data, row_bytes, source, rows, stream);
  if (row_bytes % 4 == 0) return launch_keep_rows<uint32_t>(data, row_bytes, source, rows, stream);
  launch_keep_rows<uint8_t>(data, row_bytes, source, rows, stream);
}

void add(float* y, const float* x, int64_t count, CudaStream& stream) {
  constexpr int kThreads = 256;
  if (count == 0) return;
  add_kernel<<<blocks_of(count, kThreads), kThreads, 0, stream.handle()>>>(y, x, count);
  stream.launched("add", count);
}

std::string kernels_missing() {
  cudaFuncAttributes attributes;
  const cudaError_t code = cudaFuncGetAttributes(&attributes, add_kernel);
  if (code == cudaSuccess) return "";
  cudaGetLastError();
  return cudaGetErrorString(code);
}

}  // namespace tensorfold::cuda
