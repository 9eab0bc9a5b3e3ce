// Row operations (kernels/cpu/row_ops.h).
#include "kernels/cpu/row_ops.h"

#include <cmath>

#include "kernels/cpu/simd.h"
#include "kernels/formats.h"

namespace tensorfold::cpu {

using simd::F16;

TF_CLONES void widen_bf16(const uint16_t* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) simd::store(y + i, simd::load_bf16(x + i));
  for (; i < n; ++i) y[i] = bf16_to_f32(x[i]);
}

TF_CLONES void narrow_bf16(const float* x, int64_t n, uint16_t* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) simd::store_bf16(y + i, simd::load(x + i));
  for (; i < n; ++i) y[i] = f32_to_bf16(x[i]);
}

TF_CLONES float mean_square(const float* x, int64_t n) {
  simd::CascadeSum sum;
  for (int64_t i = 0; i < n; i += 32) {
    const F16 a = simd::load(x + i), b = simd::load(x + i + 16);
    sum.add(a * a, b * b);
  }
  return sum.total() / static_cast<float>(n);
}

TF_CLONES void rms_norm(const float* x, const float* w, int n, float eps, float* y) {
  const float inv = 1.0f / std::sqrt(mean_square(x, n) + eps);
  for (int i = 0; i < n; i += 16)
    simd::store(y + i, simd::round_to_bf16(simd::load(w + i) * (simd::load(x + i) * inv)));
}

void rotate(float* x, int n, int rope_dim, const float* table, bool inverse) {
  float* v = x + n - rope_dim;
  for (int k = 0; k < rope_dim / 2; ++k) {
    const float c = table[2 * k], s = inverse ? -table[2 * k + 1] : table[2 * k + 1];
    const float re = v[2 * k], im = v[2 * k + 1];
    v[2 * k] = round_bf16(re * c - im * s);
    v[2 * k + 1] = round_bf16(re * s + im * c);
  }
}

TF_CLONES void collapse(const uint16_t* x, const float* weight, int streams, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 16) {
    F16 sum = simd::load_bf16(x + i) * weight[0];
    for (int c = 1; c < streams; ++c) sum += simd::load_bf16(x + c * n + i) * weight[c];
    simd::store(y + i, simd::round_to_bf16(sum));
  }
}

TF_CLONES void widen_half(double* row, int64_t n) {
  const float* x = narrow_half(row, n);
  for (int64_t i = 0; i < n; i += 16) {
    float values[16];  // read before the doubles reach them
    simd::store(values, simd::load(x + i));
    for (int k = 0; k < 16; ++k) row[i + k] = static_cast<double>(values[k]);
  }
}

}  // namespace tensorfold::cpu
