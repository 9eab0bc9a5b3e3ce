// The dense products under the CUDA operations: y[r][n] = sum_k w[n][k] x[r][k].
//
// bf16 weights run on tensor cores, fp32 weights as three bf16 parts that have all their bits. Both
// split the inputs into segments that depend on the weight's shape alone, sum each segment in one
// fixed order and add the segments ascending: a result is the same bits whatever rows share the
// call.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/weight_view.h"

namespace tensorfold::cuda {

inline constexpr int kDenseSegmentsMax = 8;

// Segments of a product over `in` inputs, and how many chunks of 32 each has (the last fewer).
__host__ __device__ constexpr int dense_segments(int in) {
  return in >= 2048 ? 8 : in >= 512 ? 4 : 1;
}
__host__ __device__ constexpr int dense_segment_chunks(int in) {
  const int chunks = in / 32, segments = dense_segments(in);
  return (chunks + segments - 1) / segments;
}

struct DenseProduct {
  const WeightView* w = nullptr;  // kRowsBf16 or kRowsF32
  const uint16_t* x = nullptr;    // bf16 [rows], x_stride apart; 16-byte aligned rows
  int64_t x_stride = 0;
  int rows = 0;
  void* y = nullptr;  // [rows], y_stride apart
  int64_t y_stride = 0;
  ValueType type = ValueType::kF32;
};
void dense(const DenseProduct& p, CudaStream& stream);

// The same as exact as fp32 multiply-adds, for either layout (dense_fp32.cu).
void dense_fp32(const DenseProduct& p, CudaStream& stream);

}  // namespace tensorfold::cuda
