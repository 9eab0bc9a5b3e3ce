// Transitions of pieces of stacks.
#include "engine/grammar/local_states.h"

#include <algorithm>

namespace tensorfold::grammar {

size_t LocalStates::SetHash::operator()(const FrameSet& v) const {
  uint64_t h = 1469598103934665603U;
  for (const FrameId x : v) h = (h ^ x) * 1099511628211U;
  return static_cast<size_t>(h ^ (h >> 29));
}

int32_t LocalStates::intern(FrameSet set) {
  if (set.empty()) return kNoState;
  if (set.size() > 1) std::sort(set.begin(), set.end());
  const auto [it, fresh] = ids_.emplace(std::move(set), static_cast<int32_t>(states_.size()));
  if (!fresh) return it->second;
  State state;
  state.set = it->first;
  const auto hole = std::find(state.set.begin(), state.set.end(), kHoleFrame);
  state.exits = hole != state.set.end();
  if (state.exits) state.set.erase(hole);
  bytes_ += sizeof(State) + 4 * state.set.size() * sizeof(FrameId) + 96;
  states_.push_back(std::move(state));
  return it->second;
}

int32_t LocalStates::expand(int32_t state, uint8_t byte) {
  scratch_.clear();
  // By index: interning below may move states_.
  for (size_t i = 0; i < states_[static_cast<size_t>(state)].set.size(); ++i)
    frames_.step(states_[static_cast<size_t>(state)].set[i], byte, scratch_);
  frames_.merge(scratch_);
  const int32_t t = intern(scratch_);
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
  ids_.clear();
  bytes_ = 0;
}

}  // namespace tensorfold::grammar
