// The 128-point Hadamard transform of EXL3: natural (Sylvester) order, H[i][j] =
// (-1)^popcount(i & j) / sqrt(128), symmetric and its own inverse. Pure functions on fp32 data.
//
// The butterfly runs in fp32 with strides 1, 2, 4 .. 64 in that order and multiplies once by the
// fp32 constant at the end; element operations are independent, so results are the same bits on
// every processor. Error of one transform: at most 7 fp32 roundings a value (relative norm below
// 5e-7).
#pragma once

#include <cstdint>

namespace tensorfold {

inline constexpr int kHadamardSize = 128;
inline constexpr float kHadamardScale = 0.08838834764831845f;  // 1 / sqrt(128)

// Transforms x[0..127] in place.
void hadamard128(float* x);

// Transforms each aligned block of 128 along a row of `width` values (a multiple of 128).
void hadamard_row(float* x, int64_t width);

// Transforms along the first axis of rows x width, fp32, row-major with row pitch `ld`: each
// column's aligned blocks of 128 rows. rows: a multiple of 128.
void hadamard_columns(float* x, int64_t rows, int64_t width, int64_t ld);

}  // namespace tensorfold
