// IEEE 754 binary16 ("fp16") to and from wider types, by integer arithmetic only: the same bits on
// every processor and with every compiler. Owns nothing.
//
// Rounding is to nearest, ties to even, ONCE: narrowing a double does not pass through float, so a
// value computed exactly in double gets its correctly rounded half. NaN stays NaN (quiet, payload
// cut); overflow becomes infinity; subnormal halves are kept.
#pragma once

#include <bit>
#include <cstdint>

namespace tensorfold {

constexpr float fp16_to_fp32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1Fu;
  uint32_t fraction = h & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (fraction << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
  }
  if (fraction == 0) return std::bit_cast<float>(sign);
  uint32_t shift = 0;  // subnormal: bring the leading one to bit 10
  while ((fraction & 0x400u) == 0) {
    fraction <<= 1;
    ++shift;
  }
  return std::bit_cast<float>(sign | ((113u - shift) << 23) | ((fraction & 0x3FFu) << 13));
}

constexpr uint16_t fp64_to_fp16(double value) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 48) & 0x8000u);
  const int exponent = static_cast<int>((bits >> 52) & 0x7FFu) - 1023;
  const uint64_t fraction = bits & 0xFFFFFFFFFFFFFull;
  if (exponent == 1024) {
    const uint64_t payload = fraction == 0 ? 0 : 0x200u | (fraction >> 42);
    return static_cast<uint16_t>(sign | 0x7C00u | payload);
  }
  if (exponent > 15) return static_cast<uint16_t>(sign | 0x7C00u);
  if (exponent < -25) return sign;  // below half of the smallest subnormal, zero included
  const uint64_t significand = fraction | (1ull << 52);
  // Normal halves keep 10 fraction bits; each exponent below -14 keeps one fewer.
  const int drop = exponent >= -14 ? 42 : 42 + (-14 - exponent);
  uint64_t kept = significand >> drop;
  const uint64_t rest = significand & ((1ull << drop) - 1);
  const uint64_t tie = 1ull << (drop - 1);
  if (rest > tie || (rest == tie && (kept & 1) != 0)) ++kept;
  // `kept` holds the implicit one for normals; a carry moves into the exponent as it should.
  const uint64_t base = exponent >= -14 ? static_cast<uint64_t>(exponent + 14) << 10 : 0;
  return static_cast<uint16_t>(sign | (base + kept));
}

constexpr uint16_t fp32_to_fp16(float value) { return fp64_to_fp16(static_cast<double>(value)); }

}  // namespace tensorfold
