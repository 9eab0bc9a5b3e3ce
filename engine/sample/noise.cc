// Counter-based noise. Pure; owns nothing.
#include "engine/sample/noise.h"

#include "engine/sample/portable_math.h"

namespace tensorfold {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  auto [c0, c1, c2, c3] = counter;
  auto [k0, k1] = key;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53U} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57U} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {c0, c1, c2, c3};
}

double gumbel(uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;  // exact, inside (0, 1)
  return -portable_log(-portable_log(u));
}

}  // namespace tensorfold
