// A total order on (value, index) pairs as integers: larger value first, ties to the lower index.
// NaN has a place of its own at the ends, so sorting damaged rows stays defined.
#pragma once

#include <bit>
#include <cstdint>

namespace tensorfold::cpu {

// Grows with v; -0 equals +0.
inline uint32_t ordered_bits(float v) {
  const auto u = std::bit_cast<uint32_t>(v + 0.0f);
  return (u & 0x80000000u) ? ~u : u | 0x80000000u;
}

// The larger rank goes first. Never 0 (for index < 2^32 - 1).
inline uint64_t descending_rank(float v, uint32_t index) {
  return (uint64_t{ordered_bits(v)} << 32) | (0xffffffffu - index);
}
inline uint32_t rank_index(uint64_t rank) { return 0xffffffffu - static_cast<uint32_t>(rank); }

}  // namespace tensorfold::cpu
