// The 128-point Hadamard transform (see hadamard.h). Loops are written so that the compiler
// vectorizes over independent elements; the order of additions inside one value never changes.
#include "engine/weights/hadamard.h"

#include "engine/base/check.h"

namespace tensorfold {

void hadamard128(float* x) {
  for (int stride = 1; stride < kHadamardSize; stride *= 2) {
    for (int base = 0; base < kHadamardSize; base += 2 * stride) {
      for (int i = base; i < base + stride; ++i) {
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
  }
  for (int i = 0; i < kHadamardSize; ++i) x[i] *= kHadamardScale;
}

void hadamard_row(float* x, int64_t width) {
  TF_CHECK_EQ(width % kHadamardSize, 0);
  for (int64_t i = 0; i < width; i += kHadamardSize) hadamard128(x + i);
}

namespace {

constexpr int64_t kColumnBand = 128;  // columns transformed together: 64 KiB stay in cache

void hadamard_column_band(float* x, int64_t width, int64_t ld) {
  for (int64_t stride = 1; stride < kHadamardSize; stride *= 2) {
    for (int64_t base = 0; base < kHadamardSize; base += 2 * stride) {
      for (int64_t row = base; row < base + stride; ++row) {
        float* a = x + row * ld;
        float* b = x + (row + stride) * ld;
        for (int64_t c = 0; c < width; ++c) {
          const float p = a[c], q = b[c];
          a[c] = p + q;
          b[c] = p - q;
        }
      }
    }
  }
  for (int64_t row = 0; row < kHadamardSize; ++row) {
    for (int64_t c = 0; c < width; ++c) x[row * ld + c] *= kHadamardScale;
  }
}

}  // namespace

void hadamard_columns(float* x, int64_t rows, int64_t width, int64_t ld) {
  TF_CHECK_EQ(rows % kHadamardSize, 0);
  for (int64_t row = 0; row < rows; row += kHadamardSize) {
    for (int64_t c = 0; c < width; c += kColumnBand) {
      hadamard_column_band(x + row * ld + c, width - c < kColumnBand ? width - c : kColumnBand, ld);
    }
  }
}

}  // namespace tensorfold
