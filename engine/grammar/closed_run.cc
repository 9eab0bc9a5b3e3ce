// Breadth first over pairs of automaton state and place inside a character.
#include "engine/grammar/closed_run.h"

#include <algorithm>
#include <set>

namespace tensorfold::grammar {
namespace {

constexpr size_t kPairsMax = 1024;  // looked at for one answer

// Places inside a UTF-8 character: which bytes may come, and the place after them.
struct Place {
  uint8_t low, high;
  uint8_t next;
};
constexpr Place kPlaces[] = {
    {0, 0, 0},        // 0: between characters (not used)
    {0x80, 0xBF, 0},  // 1: one byte to come
    {0x80, 0xBF, 1},  // 2: two
    {0x80, 0xBF, 2},  // 3: three
    {0xA0, 0xBF, 1},  // 4: after E0
    {0x80, 0x9F, 1},  // 5: after ED
    {0x90, 0xBF, 2},  // 6: after F0
    {0x80, 0x8F, 2},  // 7: after F4
};

uint8_t place_after(uint8_t lead) {
  if (lead < 0xE0) return 1;
  if (lead == 0xE0) return 4;
  if (lead == 0xED) return 5;
  if (lead < 0xF0) return 2;
  if (lead == 0xF0) return 6;
  return lead < 0xF4 ? 3 : 7;
}

}  // namespace

ClosedRuns::ClosedRuns(const Dfa& dfa) : dfa_(dfa) {
  std::array<std::array<bool, 256>, kByteKinds> seen{};
  for (int b = 0; b < 0x80; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    const ByteKind kind = ascii_kind(byte);
    if (seen[kind][dfa.byte_class[byte]]) continue;
    seen[kind][dfa.byte_class[byte]] = true;
    bytes_[kind].push_back(byte);
  }
  for (int b = 0xC2; b <= 0xF4; ++b) bytes_[kBeyond].push_back(static_cast<uint8_t>(b));
}

uint32_t ClosedRuns::alive_kinds(int32_t state) const {
  uint32_t kinds = 0;
  for (uint32_t k = 0; k < kBroken; ++k) {
    const bool all = std::all_of(bytes_[k].begin(), bytes_[k].end(),
                                 [&](uint8_t b) { return dfa_.step(state, b) >= 0; });
    if (all) kinds |= 1U << k;
  }
  return kinds;
}

uint32_t ClosedRuns::run(int32_t state, uint32_t kinds) const {
  using Pair = std::pair<int32_t, uint8_t>;
  std::set<Pair> seen = {{state, 0}};
  std::vector<Pair> now = {{state, 0}}, after;
  for (uint32_t length = 0; !now.empty(); ++length) {
    after.clear();
    for (const auto& [s, place] : now) {
      const auto visit = [&](uint8_t byte, uint8_t next) {
        const int32_t t = dfa_.step(s, byte);
        if (t >= 0 && seen.insert({t, next}).second) after.push_back({t, next});
        return t >= 0;
      };
      if (place != 0) {
        const Place& p = kPlaces[place];
        for (int b = p.low; b <= p.high; ++b) {
          if (!visit(static_cast<uint8_t>(b), p.next)) return length;
        }
        continue;
      }
      for (uint32_t k = 0; k < kBroken; ++k) {
        if ((kinds >> k & 1U) == 0) continue;
        for (const uint8_t b : bytes_[k]) {
          if (!visit(b, k == kBeyond ? place_after(b) : 0)) return length;
        }
      }
    }
    if (seen.size() > kPairsMax) return length + 1;
    now.swap(after);
  }
  return kRunForever;
}

}  // namespace tensorfold::grammar
