// Noise for sampling, keyed by (seed, choice index, position, token): a pure function, so that a
// token does not depend on batching, speculation or which rank draws it. A drafter that adds the
// same noise to its own logits proposes what the target will sample more often.
//
// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
#pragma once

#include <array>
#include <cstdint>

namespace tensorfold {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The largest value gumbel() returns: lets a search skip tokens that can't win.
inline constexpr double kGumbelMax = 22.8739;

// Gumbel(0, 1) noise from a word: -ln(-ln((word + 1/2) / 2^32)).
double gumbel(uint32_t word);

struct NoiseKey {
  uint64_t seed = 0;
  int32_t choice_index = 0;
  int64_t position = 0;

  // The words of tokens 4 * group .. 4 * group + 3.
  std::array<uint32_t, 4> words(uint32_t group) const {
    const auto p = static_cast<uint64_t>(position);
    return philox4x32({group, static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32),
                       static_cast<uint32_t>(choice_index)},
                      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  }
  double noise(int32_t token) const {
    const auto t = static_cast<uint32_t>(token);
    return gumbel(words(t / 4)[t % 4]);
  }
};

}  // namespace tensorfold
