// Breadth first over pairs of automaton state and place inside a character, a character at a time.
#include "engine/grammar/closed_run.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

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

constexpr uint8_t kInSpaceBlock = 8;  // beside a place: the character's kind is kBeyondSpace
constexpr size_t kPlacesAll = 2 * std::size(kPlaces);

// Continuation bytes are told apart at 0x90 and 0xA0 only (kPlaces).
constexpr uint8_t kContinuation[] = {0x80, 0x90, 0xA0};

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
  // First bytes of characters that the automaton and UTF-8 both treat alike.
  std::set<std::tuple<ByteKind, uint8_t, uint8_t>> leads;  // kind, class, place behind it
  for (int b = 0xC2; b <= 0xF4; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    if (leads.insert({beyond_kind(byte), dfa.byte_class[byte], place_after(byte)}).second)
      bytes_[beyond_kind(byte)].push_back(byte);
  }
  for (int32_t s = 0; s < static_cast<int32_t>(dfa.states()); ++s) {
    for (uint32_t k = 0; k < kBroken; ++k) {
      if ((ever_ >> k & 1U) != 0) continue;
      const bool any = std::any_of(bytes_[k].begin(), bytes_[k].end(),
                                   [&](uint8_t b) { return dfa.step(s, b) >= 0; });
      if (any) ever_ |= 1U << k;
    }
  }
  for (const uint8_t from : kContinuation) {
    for (int b = from; b < (from == 0xA0 ? 0xC0 : from + 0x10); ++b) {
      const auto byte = static_cast<uint8_t>(b);
      std::vector<uint8_t>& kept = inner_[from == 0x80 ? 0 : from == 0x90 ? 1 : 2];
      const bool known = std::any_of(kept.begin(), kept.end(), [&](uint8_t other) {
        return dfa.byte_class[other] == dfa.byte_class[byte];
      });
      if (!known) kept.push_back(byte);
    }
  }
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

const std::vector<ClosedRuns::Closed>& ClosedRuns::closed(int32_t state, uint32_t allowed,
                                                          uint32_t left) {
  std::vector<Closed>& out = known_[{state, allowed, left}];
  if (!out.empty()) return out;
  uint32_t kinds = alive_kinds(state) & allowed;
  while (kinds != 0) {
    uint32_t failed = 0, led = 0;
    const uint32_t chars = run(state, kinds, left, failed, led);
    if (chars > 0) out.push_back({kinds, chars});
    if (failed == 0 || chars >= kRunLooked) break;
    // What cannot go on everywhere is left out, or what led to where it cannot: the fewer.
    const bool leads = led != 0 && __builtin_popcount(led) < __builtin_popcount(failed);
    kinds &= ~(leads ? led : failed);
  }
  if (out.empty()) out.push_back({0, 0});
  return out;
}

// Breadth first, character by character; `failed`: kinds that cannot go on, `led`: kinds of the
// characters before those places.
uint32_t ClosedRuns::run(int32_t state, uint32_t kinds, uint32_t left, uint32_t& failed,
                         uint32_t& led) {
  if (seen_.empty()) {
    seen_.assign(dfa_.states() * kPlacesAll, 0);
    via_.assign(dfa_.states(), 0);
  }
  ++stamp_;
  size_t visited = 0;
  std::vector<Pair> now = {{state, 0}}, after;
  via_[static_cast<size_t>(state)] = 0;
  uint32_t chars = 0;
  // False: cannot go on by this byte.
  const auto visit = [&](int32_t s, uint8_t byte, uint8_t place, uint32_t kind) {
    const int32_t t = dfa_.step(s, byte);
    if (t < 0) return false;
    const auto i = static_cast<size_t>(t);
    if (place == 0 && left != kRunForever && dfa_.min_chars[i] >= left - chars) return false;
    uint32_t& seen = seen_[i * kPlacesAll + place];
    if (seen != stamp_) {
      seen = stamp_;
      ++visited;
      if (place == 0) via_[i] = 0;
      (place == 0 ? after : now).emplace_back(t, place);
    }
    if (place == 0) via_[i] |= 1U << kind;
    return true;
  };
  for (; !now.empty(); ++chars) {
    if (chars >= kRunLooked || visited > kPairsMax) return chars;
    if (left != kRunForever) ++stamp_;  // what is alive here need not be farther on
    after.clear();
    for (size_t i = 0; i < now.size(); ++i) {
      const auto [s, place] = now[i];
      const uint32_t before = place == 0 ? via_[static_cast<size_t>(s)] : 0;
      const uint32_t dead = place == 0 ? step_first(s, kinds, visit) : step_inner(s, place, visit);
      failed |= dead;
      if (dead != 0) led |= before;
    }
    if (failed != 0) return chars;
    now.swap(after);
  }
  return kRunForever;
}

// Kinds of which some character cannot begin here.
template <typename Visit>
uint32_t ClosedRuns::step_first(int32_t state, uint32_t kinds, Visit visit) const {
  uint32_t dead = 0;
  for (uint32_t k = 0; k < kBroken; ++k) {
    if ((kinds >> k & 1U) == 0) continue;
    for (const uint8_t b : bytes_[k]) {
      const auto place = static_cast<uint8_t>(
          (kAnyBeyond >> k & 1U) == 0 ? 0
                                      : place_after(b) | (k == kBeyondSpace ? kInSpaceBlock : 0));
      if (!visit(state, b, place, k)) dead |= 1U << k;
    }
  }
  return dead;
}

// The same inside a character.
template <typename Visit>
uint32_t ClosedRuns::step_inner(int32_t state, uint8_t place, Visit visit) const {
  const Place& p = kPlaces[place % kInSpaceBlock];
  const auto block = static_cast<uint8_t>(place & kInSpaceBlock);
  const uint32_t kind = block == 0 ? kBeyond : kBeyondSpace;
  const auto next = static_cast<uint8_t>(p.next == 0 ? 0 : p.next | block);
  uint32_t dead = 0;
  for (size_t i = 0; i < std::size(kContinuation); ++i) {
    if (kContinuation[i] < p.low || kContinuation[i] > p.high) continue;
    for (const uint8_t b : inner_[i]) {
      if (!visit(state, b, next, kind)) dead |= 1U << kind;
    }
  }
  return dead;
}

}  // namespace tensorfold::grammar
