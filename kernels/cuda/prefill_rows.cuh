// How rotated rows of class P lie in memory: [steps of 64 inputs][rows][64 fp16 values], the values
// of a row in the order of a step (prefill_place) and its 16-byte pieces swizzled by row, as the
// matrix units want them in shared memory. The rows of a tile are one piece of memory a step.
// `rows` is a multiple of 8; rows that nobody wrote are products that nobody reads.
#pragma once

#include "kernels/cuda/exl3_prefill.cuh"

namespace tensorfold::cuda {

__host__ __device__ constexpr int64_t placed_rows(int64_t rows) { return (rows + 7) / 8 * 8; }

// Value `place` (0..63) of a row in a step.
__device__ __forceinline__ int64_t row_value(int64_t step, int64_t row, int64_t rows, int place) {
  const int piece = (place >> 3) ^ static_cast<int>(row & 7);
  return (step * rows + row) * 64 + piece * 8 + (place & 7);
}

// This lane's four values of a block of 128 of a row, to `x`.
__device__ __forceinline__ void store_row_block(const float (&v)[4], uint16_t* x, int64_t row,
                                                int64_t rows, int block, int lane) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const int k = 4 * lane + i;
    *reinterpret_cast<__half2*>(x +
                                row_value(2 * block + (k >> 6), row, rows, prefill_place(k & 63))) =
        __floats2half2_rn(v[i], v[i + 1]);
  }
}

}  // namespace tensorfold::cuda
