// exp and log in fp64 from additions, multiplications and divisions alone, so that a sampled token
// is the same on every processor, on a GPU, and with every C library: libm's last bits are not
// specified.
//
// Range reduction and a fixed polynomial each. Compiled without contraction (tf_options;
// -fmad=false for kernels), so every operation rounds as written. Within 2 units in the last place
// of the exact value over the ranges below (tested); each is a pure function of its argument's
// bits.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/host_device.h"

namespace tensorfold {

// ln 2 in two parts: the high one has 32 trailing zero bits, so k * kLn2High is exact for |k| <
// 2^11.
inline constexpr double kLn2High = 0x1.62e42fee00000p-1;
inline constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
inline constexpr double kLog2E = 0x1.71547652b82fep+0;
inline constexpr double kPortableInfinity = std::numeric_limits<double>::infinity();

// 2^k for -1022 <= k <= 1023.
TF_HOST_DEVICE inline double power_of_two(int k) {
  return std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
}

// e^x. Below -745.2: 0. Above 709.7: infinity. NaN gives NaN.
TF_HOST_DEVICE inline double portable_exp(double x) {
  if (x != x) return x;
  if (x > 709.79) return kPortableInfinity;
  if (x < -745.2) return 0.0;
  const double scaled = x * kLog2E;
  const int k = static_cast<int>(scaled + (scaled < 0 ? -0.5 : 0.5));
  const double high = x - k * kLn2High;
  const double low = k * kLn2Low;
  const double r = high - low;           // |r| <= ln 2 / 2 and a little
  const double lost = (high - r) - low;  // what the subtraction rounded away
  // Taylor of (e^r - 1 - r) to r^13; the next term is below 5e-18.
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  const double e = 1.0 + (r + (p * (r * r) + lost * (1.0 + r)));
  // Two factors, so that neither overflows and a subnormal result rounds once.
  const int half = k / 2;
  if (k > -1022 && k < 1023) return e * power_of_two(k);
  return e * power_of_two(half) * power_of_two(k - half);
}

// ln x for x > 0, subnormals included. 0: -infinity. Below 0 or NaN: NaN. Infinity: infinity.
TF_HOST_DEVICE inline double portable_log(double x) {
  if (x != x || x < 0) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0) return -kPortableInfinity;
  if (x == kPortableInfinity) return x;
  int k = 0;
  if (x < std::numeric_limits<double>::min()) {
    x *= 0x1p54;
    k = -54;
  }
  const auto bits = std::bit_cast<uint64_t>(x);
  k += static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  if (m > 0x1.6a09e667f3bcdp+0) {  // above the root of 2
    m *= 0.5;
    ++k;
  }
  // ln m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.1716; as f - s (f - R), f = m - 1, the
  // leading term is exact. The series to s^21: the next term is below 1e-18 of the result.
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double p = 2.0 / 21.0;
  p = p * z + 2.0 / 19.0;
  p = p * z + 2.0 / 17.0;
  p = p * z + 2.0 / 15.0;
  p = p * z + 2.0 / 13.0;
  p = p * z + 2.0 / 11.0;
  p = p * z + 2.0 / 9.0;
  p = p * z + 2.0 / 7.0;
  p = p * z + 2.0 / 5.0;
  p = p * z + 2.0 / 3.0;
  const double tail = p * z;  // 2 atanh(s) / s - 2
  const double half_square = 0.5 * f * f;
  // ln m = f - f^2/2 + s (f^2/2 + tail)
  return k * kLn2High - ((half_square - (s * (half_square + tail) + k * kLn2Low)) - f);
}

}  // namespace tensorfold
