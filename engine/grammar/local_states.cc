// Transitions of pieces of stacks.
#include "engine/grammar/local_states.h"

#include <algorithm>

namespace tensorfold::grammar {

namespace {
constexpr size_t kTableMin = 256;  // places; a power of two

size_t hash_of(const FrameSet& v, bool exits) {
  uint64_t h = exits ? 0x9E3779B97F4A7C15U : 1469598103934665603U;
  for (const FrameId x : v) h = (h ^ x) * 0xFF51AFD7ED558CCDU;
  return static_cast<size_t>(h ^ (h >> 32));
}
}  // namespace

// Sorts `set` and takes the hole out of it; it stays the caller's.
int32_t LocalStates::intern_scratch(FrameSet& set) {
  if (set.empty()) return kNoState;
  if (set.size() > 1) std::sort(set.begin(), set.end());
  const auto hole = std::find(set.begin(), set.end(), kHoleFrame);
  const bool exits = hole != set.end();
  if (exits) set.erase(hole);
  if (2 * (states_.size() + 1) > table_.size()) grow();
  const size_t mask = table_.size() - 1;
  size_t place = hash_of(set, exits) & mask;
  while (table_[place] != kNoState) {
    const State& s = states_[static_cast<size_t>(table_[place])];
    if (s.exits == exits && s.set == set) return table_[place];
    place = (place + 1) & mask;
  }
  const auto id = static_cast<int32_t>(states_.size());
  table_[place] = id;
  State state;
  state.set = set;
  state.exits = exits;
  bytes_ += sizeof(State) + state.set.size() * sizeof(FrameId) + 32;
  states_.push_back(std::move(state));
  return id;
}

int32_t LocalStates::intern(FrameSet set) { return intern_scratch(set); }

void LocalStates::grow() {
  const size_t mask = std::max(kTableMin, 2 * table_.size()) - 1;
  table_.assign(mask + 1, kNoState);
  for (size_t i = 0; i < states_.size(); ++i) {
    size_t place = hash_of(states_[i].set, states_[i].exits) & mask;
    while (table_[place] != kNoState) place = (place + 1) & mask;
    table_[place] = static_cast<int32_t>(i);
  }
}

int32_t LocalStates::expand(int32_t state, uint8_t byte) {
  scratch_.clear();
  // By index: interning below may move states_.
  for (size_t i = 0; i < states_[static_cast<size_t>(state)].set.size(); ++i)
    frames_.step(states_[static_cast<size_t>(state)].set[i], byte, scratch_);
  frames_.merge(scratch_);
  const int32_t t = intern_scratch(scratch_);
  State& s = states_[static_cast<size_t>(state)];
  if (!s.next && s.known < kFewBytes) {
    s.bytes[s.known] = byte;
    s.to[s.known++] = t;
    return t;
  }
  if (!s.next) {
    s.next = std::make_unique<Table>();
    s.next->fill(kUnknown);
    for (uint8_t i = 0; i < s.known; ++i) (*s.next)[s.bytes[i]] = s.to[i];
    bytes_ += sizeof(Table);
  }
  (*s.next)[byte] = t;
  return t;
}

void LocalStates::clear() {
  states_.clear();
  table_.clear();
  bytes_ = 0;
}

}  // namespace tensorfold::grammar
