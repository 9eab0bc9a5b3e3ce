// Operations on one row that several CPU operations share. n is a multiple of 32 everywhere.
#pragma once

#include <cstdint>

#include "engine/base/check.h"
#include "kernels/op.h"
#include "kernels/weight_view.h"

namespace tensorfold::cpu {

void widen_bf16(const uint16_t* x, int64_t n, float* y);
void narrow_bf16(const float* x, int64_t n, uint16_t* y);

// Sum of squares / n, in simd::CascadeSum's order.
float mean_square(const float* x, int64_t n);

// y = bf16(w * (x * rsqrt(mean(x^2) + eps))), as fp32. y may be x.
void rms_norm(const float* x, const float* w, int n, float eps, float* y);

// Rotates the last `rope_dim` of n channels by table (cos, sin pairs) and rounds them to bf16.
// inverse: by the conjugate.
void rotate(float* x, int n, int rope_dim, const float* table, bool inverse);

// y = bf16(sum_c weight[c] * x[c]) over `streams` bf16 rows of n values, as fp32.
void collapse(const uint16_t* x, const float* weight, int streams, int64_t n, float* y);

// A row of fp64 in the making: its fp32 values lie in the upper half of its memory.
inline float* narrow_half(double* row, int64_t n) { return reinterpret_cast<float*>(row) + n; }
// Widens them in place.
void widen_half(double* row, int64_t n);

// Bump allocation inside a workspace; running out is a fault of the size function.
class Arena {
 public:
  explicit Arena(const Workspace& w) : at_(w.data), end_(w.data + w.bytes) {}
  template <typename T>
  T* take(int64_t count) {
    std::byte* p = at_;
    at_ += padded(count * static_cast<int64_t>(sizeof(T)));
    TF_CHECK_MSG(at_ <= end_, "operation workspace too small");
    return reinterpret_cast<T*>(p);
  }
  static constexpr int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  std::byte* at_;
  std::byte* end_;
};

}  // namespace tensorfold::cpu
