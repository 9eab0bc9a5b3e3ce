// Number formats on the GPU, bit for bit those of kernels/formats.h (a NaN in bf16 has one pattern
// here): the GPU's conversion to bf16, else integer arithmetic on bits and exact fp32 operations.
#pragma once

#include <cstdint>

namespace tensorfold::cuda {

// ---------------------------------------------------------------- bf16
__device__ inline float bf16_value(uint16_t v) { return __uint_as_float(uint32_t{v} << 16); }
__device__ inline float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline uint16_t to_bf16(float v) {
  return static_cast<uint16_t>(pack_bf16(v, 0.0f) & 0xffffu);
}
__device__ inline float round_bf16(float v) { return bf16_low(pack_bf16(v, 0.0f)); }

// ---------------------------------------------------------------- e4m3
__device__ inline uint8_t to_e4m3(float v) {
  const uint32_t u = __float_as_uint(v);
  const uint32_t sign = (u >> 24) & 0x80u;
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (a >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // 448
  if (a < 0x3c800000u) {  // below 2^-6: adding 2^14 rounds to a multiple of 2^-9
    const float t = __uint_as_float(a) + 16384.0f;
    return static_cast<uint8_t>(sign | (__float_as_uint(t) - 0x46800000u));
  }
  const uint32_t rounded = a + 0x7ffffu + ((a >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code < 0x7eu ? code : 0x7eu));
}
__device__ inline float e4m3_value(uint8_t v) {
  const uint32_t exponent = (v >> 3) & 15u, mantissa = v & 7u;
  float m = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                          : __uint_as_float(((exponent + 120u) << 23) | (mantissa << 20));
  if ((v & 0x7fu) == 0x7fu) m = __uint_as_float(0x7fc00000u);
  return (v & 0x80u) != 0 ? -m : m;
}

// ---------------------------------------------------------------- UE8M0
__device__ inline float ue8m0_value(uint8_t e) {
  if (e == 0) return __uint_as_float(0x00400000u);
  if (e == 255) return __uint_as_float(0x7fc00000u);
  return __uint_as_float(uint32_t{e} << 23);
}
__device__ inline uint8_t ue8m0_scale(float amax, float inverse_max) {
  const uint32_t u = __float_as_uint(amax * inverse_max);
  const uint32_t e = ((u >> 23) & 0xffu) + ((u & 0x7fffffu) != 0 ? 1u : 0u);
  return static_cast<uint8_t>(e < 255u ? e : 255u);
}

// ---------------------------------------------------------------- e2m1
__device__ inline uint8_t to_e2m1(float v) {
  const uint32_t u = __float_as_uint(v);
  const float a = __uint_as_float(u & 0x7fffffffu);
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                   (a >= 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>(code | ((u >> 28) & 8u));
}
// Twice the value, an integer of -12..12.
__device__ inline int e2m1_twice(uint32_t code) {
  const uint32_t m = code & 7u;
  const int magnitude = static_cast<int>((0xC8643210u >> (4 * m)) & 15u);
  return (code & 8u) != 0 ? -magnitude : magnitude;
}
__device__ inline float e2m1_value(uint32_t code) {
  const uint32_t m = code & 7u;
  const float magnitude = 0.5f * static_cast<float>((0xC8643210u >> (4 * m)) & 15u);
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

// ---------------------------------------------------------------- blocks, one value a lane
inline constexpr float kInverse448 = 1.0f / 448.0f;
inline constexpr float kInverse6 = 1.0f / 6.0f;

// Largest |x| of `width` neighboring lanes as bits, at least `floor`; NaN is larger than all.
__device__ inline float lanes_amax(float x, int width, float floor) {
  uint32_t m = __float_as_uint(x) & 0x7fffffffu;
  for (int step = width / 2; step > 0; step /= 2) m = max(m, __shfl_xor_sync(~0u, m, step));
  return __uint_as_float(max(m, __float_as_uint(floor)));
}
// A warp's 32 values -> e4m3 codes and a UE8M0 scale (the same in every lane).
__device__ inline uint8_t quantise_fp8_lanes(float x, uint8_t& scale) {
  scale = ue8m0_scale(lanes_amax(x, 32, 1e-4f), kInverse448);
  return to_e4m3(x / ue8m0_value(scale));
}
__device__ inline float fake_fp8_lanes(float x) {
  uint8_t scale;
  const uint8_t code = quantise_fp8_lanes(x, scale);
  return e4m3_value(code) * ue8m0_value(scale);
}
// 32 values -> e2m1 codes and a UE8M0 scale.
__device__ inline uint8_t quantise_fp4_ue8m0_lanes(float x, uint8_t& scale) {
  scale = ue8m0_scale(lanes_amax(x, 32, 6.0f * 0x1p-126f), kInverse6);
  return to_e2m1(x / ue8m0_value(scale));
}
// 16 values (half a warp) -> e2m1 codes and an e4m3 scale.
__device__ inline uint8_t quantise_fp4_e4m3_lanes(float x, uint8_t& scale) {
  scale = to_e4m3(lanes_amax(x, 16, 6.0f * 0x1p-9f) / 6.0f);
  return to_e2m1(x / e4m3_value(scale));
}

}  // namespace tensorfold::cuda
