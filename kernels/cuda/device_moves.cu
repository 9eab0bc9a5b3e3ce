// Moving and adding whole buffers (Device::keep_rows, Device::add).
#include <cuda_runtime.h>

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

}  // namespace

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
