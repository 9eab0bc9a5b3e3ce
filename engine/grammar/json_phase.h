// Frame::b of objects, arrays and values: what was read last, and the white space since. Private to
// the frames_*.cc files.
#pragma once

#include <cstdint>

namespace tensorfold::grammar::json_phase {

enum Phase : uint32_t { kOpened = 0, kAfterValue = 1, kAfterComma = 2 };
constexpr uint32_t phase_of(uint32_t b) { return b & 0xFFU; }
constexpr uint32_t space_of(uint32_t b) { return b >> 8; }
constexpr uint32_t make(uint32_t phase, uint32_t space) { return phase | (space << 8); }
constexpr uint32_t kNoSpace = UINT32_MAX;  // Frame::b of a value that white space may not precede

}  // namespace tensorfold::grammar::json_phase
