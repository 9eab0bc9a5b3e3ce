// 16-lane fp32 vectors for the CPU operations, and elementary functions whose bits are the same on
// every processor.
//
// Compiler vectors only (no intrinsics): the same source becomes SSE2, AVX2, AVX-512 or NEON code,
// and since nothing is contracted or reassociated, all of them give equal bits. Functions marked
// TF_CLONES are compiled for several x86 levels and picked at load time.
// The elementary functions use polynomials in plain fp32 (sine and cosine: double) instead of libm,
// whose last bit differs between systems.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TF_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define TF_CLONES
#endif
#define TF_INLINE static inline __attribute__((always_inline))

namespace tensorfold::simd {

inline constexpr int kLanes = 16;

typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));
typedef uint16_t H16 __attribute__((vector_size(32)));
// The same, at any address of the element's alignment.
typedef float F16u __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t H16u __attribute__((vector_size(32), aligned(2), may_alias));

TF_INLINE F16 load(const float* p) { return *reinterpret_cast<const F16u*>(p); }
TF_INLINE void store(float* p, F16 v) { *reinterpret_cast<F16u*>(p) = v; }
TF_INLINE F16 splat(float v) { return v - F16{}; }

// 16 bf16 values, widened.
TF_INLINE F16 load_bf16(const uint16_t* p) {
  const H16 h = *reinterpret_cast<const H16u*>(p);
  return reinterpret_cast<F16>(__builtin_convertvector(h, U16) << 16);
}

// Rounds 16 values to bf16, nearest even; NaN stays NaN.
TF_INLINE void store_bf16(uint16_t* p, F16 v) {
  const U16 u = reinterpret_cast<U16>(v);
  const U16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const U16 nan = reinterpret_cast<U16>(v != v);
  const U16 bits = (nan & ((u >> 16) | 0x40u)) | (~nan & rounded);
  *reinterpret_cast<H16u*>(p) = __builtin_convertvector(bits, H16);
}

TF_INLINE F16 round_to_bf16(F16 v) {
  const U16 u = reinterpret_cast<U16>(v);
  const U16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  const U16 nan = reinterpret_cast<U16>(v != v);
  return reinterpret_cast<F16>((nan & u) | (~nan & rounded));
}

// A sum over a row in fp32, in one order for every width: 32 running sums (element i goes to i mod
// 32) in runs of 16 steps, the runs' sums added in a cascade of levels; at the end the sums 8 apart
// are added ascending, then the 8 left ascending.
class CascadeSum {
 public:
  __attribute__((always_inline)) inline void add(F16 low, F16 high) {
    low_[0] += low;
    high_[0] += high;
    ++steps_;
    for (int64_t k = 1, done = steps_; k < kLevels && done % kRun == 0; ++k, done /= kRun) {
      low_[k] += low_[k - 1];
      high_[k] += high_[k - 1];
      low_[k - 1] = high_[k - 1] = F16{};
    }
  }
  __attribute__((always_inline)) inline float total() {
    for (int k = 1; k < kLevels; ++k) {
      low_[0] += low_[k];
      high_[0] += high_[k];
    }
    float t[32];
    store(t, low_[0]);
    store(t + 16, high_[0]);
    float sum = 0;
    for (int i = 0; i < 8; ++i) {
      const float column = ((t[i] + t[8 + i]) + t[16 + i]) + t[24 + i];
      sum = i == 0 ? column : sum + column;
    }
    return sum;
  }

 private:
  static constexpr int kLevels = 4, kRun = 16;
  F16 low_[kLevels] = {}, high_[kLevels] = {};
  int64_t steps_ = 0;
};

TF_INLINE F16 max(F16 a, F16 b) { return a > b ? a : b; }
TF_INLINE F16 min(F16 a, F16 b) { return a < b ? a : b; }

// Sum of lanes: halves are added until one is left. The order every reduction ends with.
TF_INLINE float sum_lanes(F16 v) {
  float t[16];
  std::memcpy(t, &v, sizeof t);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) t[i] += t[i + width];
  return t[0];
}

TF_INLINE float max_lanes(F16 v) {
  float t[16];
  std::memcpy(t, &v, sizeof t);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) t[i] = t[i] > t[i + width] ? t[i] : t[i + width];
  return t[0];
}

typedef double D16 __attribute__((vector_size(128)));
typedef int64_t L16 __attribute__((vector_size(128)));

// e^x = 2^k (1 + (e^r - 1)), r = x - k ln 2: r and e^r - 1 are rounded to fp32, so the error stays
// below 0.8 units of the last place. Overflows to infinity, underflows to 0 through subnormals; NaN
// stays NaN.
TF_INLINE F16 exp(F16 x) {
  x = x < -150.0f ? splat(-150.0f) : x;
  x = x > 130.0f ? splat(130.0f) : x;
  const D16 v = __builtin_convertvector(x, D16);
  const D16 magic = D16{} + 6755399441055744.0;  // 1.5 * 2^52: the sum's low bits are the integer
  const D16 t = v * 0x1.71547652b82fep+0 + magic;
  const F16 reduced = __builtin_convertvector(v - (t - magic) * 0x1.62e42fefa39efp-1, F16);
  const D16 r = __builtin_convertvector(reduced, D16);
  D16 p = D16{} + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  const F16 y = __builtin_convertvector(p * r, F16) + 1.0f;
  const L16 n = reinterpret_cast<L16>(t) - reinterpret_cast<L16>(magic);
  const I16 k = __builtin_convertvector(n, I16);
  const I16 k1 = k >> 1;  // 2^k in two factors, so that subnormal results round once
  const I16 k2 = k - k1;
  return (y * reinterpret_cast<F16>((k1 + 127) << 23)) * reinterpret_cast<F16>((k2 + 127) << 23);
}

TF_INLINE float exp(float x) {
  const F16 v = exp(splat(x));
  return v[0];
}

TF_INLINE F16 sigmoid(F16 x) { return 1.0f / (1.0f + exp(-x)); }
TF_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

// ln(1 + u) for u >= 0, rounded from fp64.
TF_INLINE float log1p(float u) {
  // y = 2^k (1 + s) / (1 - s), so ln y = k ln 2 + 2 artanh(s); small u are not added to 1 first.
  double s = static_cast<double>(u) / (2.0 + static_cast<double>(u));
  double k = 0;
  if (u >= 1.0f) {
    const double y = 1.0 + static_cast<double>(u);
    const auto bits = std::bit_cast<uint64_t>(y);
    const auto m = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
    k = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1023);
    s = (m - 1.0) / (m + 1.0);
  }
  const double s2 = s * s;
  double p = 0;
  for (int i = 37; i >= 1; i -= 2) p = p * s2 + 1.0 / static_cast<double>(i);
  return static_cast<float>(k * 0x1.62e42fefa39efp-1 + 2.0 * s * p);
}

// ln(1 + e^x), by way of fp32; x itself above 20.
TF_INLINE float softplus(float x) { return x > 20.0f ? x : log1p(exp(x)); }

// Sine and cosine of an fp32 angle of up to 2^20 radians, right to the last fp32 bit but one.
TF_INLINE void sincos(float angle, float& sine, float& cosine) {
  const double x = angle;
  const double magic = 6755399441055744.0;  // 1.5 * 2^52
  const double t = x * 0x1.45f306dc9c883p-1 + magic;
  const double n = t - magic;
  const double r = ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
  const double r2 = r * r;
  double s = -1.0 / 1307674368000.0;  // Taylor: r^15 / 15! and down
  s = s * r2 + 1.0 / 6227020800.0;
  s = s * r2 - 1.0 / 39916800.0;
  s = s * r2 + 1.0 / 362880.0;
  s = s * r2 - 1.0 / 5040.0;
  s = s * r2 + 1.0 / 120.0;
  s = s * r2 - 1.0 / 6.0;
  s = s * r2 * r + r;
  double c = 1.0 / 20922789888000.0;  // r^16 / 16! and down
  c = c * r2 - 1.0 / 87178291200.0;
  c = c * r2 + 1.0 / 479001600.0;
  c = c * r2 - 1.0 / 3628800.0;
  c = c * r2 + 1.0 / 40320.0;
  c = c * r2 - 1.0 / 720.0;
  c = c * r2 + 1.0 / 24.0;
  c = c * r2 - 0.5;
  c = c * r2 + 1.0;
  const auto quadrant = std::bit_cast<uint64_t>(t) & 3u;  // magic's low bits are zero
  const double sq = (quadrant & 1u) ? c : s;
  const double cq = (quadrant & 1u) ? s : c;
  sine = static_cast<float>((quadrant & 2u) ? -sq : sq);
  cosine = static_cast<float>(((quadrant + 1u) & 2u) ? -cq : cq);
}

}  // namespace tensorfold::simd
