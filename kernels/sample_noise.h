// Noise for sampling, keyed by (seed, choice index, position, token): a pure function, so that a
// token does not depend on batching, speculation or which rank draws it. A drafter that adds the
// same noise to its own logits proposes what the target will sample more often.
//
// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
#pragma once

#include <array>
#include <cstdint>

#include "kernels/portable_math.h"

namespace tensorfold {

TF_HOST_DEVICE inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                                         std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
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

// The largest value gumbel() returns: lets a search skip tokens that can't win.
inline constexpr double kGumbelMax = 22.8739;

// Gumbel(0, 1) noise from a word: -ln(-ln((word + 1/2) / 2^32)).
TF_HOST_DEVICE inline double gumbel(uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;  // exact, inside (0, 1)
  return -portable_log(-portable_log(u));
}

struct NoiseKey {
  uint64_t seed = 0;
  int32_t choice_index = 0;
  int64_t position = 0;

  // The words of tokens 4 * group .. 4 * group + 3.
  TF_HOST_DEVICE std::array<uint32_t, 4> words(uint32_t group) const {
    const auto p = static_cast<uint64_t>(position);
    return philox4x32({group, static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32),
                       static_cast<uint32_t>(choice_index)},
                      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  }
  TF_HOST_DEVICE double noise(int32_t token) const {
    const auto t = static_cast<uint32_t>(token);
    return gumbel(words(t / 4)[t % 4]);
  }
};

}  // namespace tensorfold
