// Transitions of pieces of stacks.
#include "engine/grammar/local_states.h"

#include <algorithm>

namespace tensorfold::grammar {

namespace {
constexpr size_t kTableMin = 256;  // places; a power of two

size_t hash_of(std::span<const FrameId> v, bool exits) {
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
    if (s.exits == exits && s.size == set.size() &&
        std::equal(set.begin(), set.end(), pool_.begin() + s.begin))
      return table_[place];
    place = (place + 1) & mask;
  }
  const auto id = static_cast<int32_t>(states_.size());
  table_[place] = id;
  State state;
  state.begin = static_cast<uint32_t>(pool_.size());
  state.size = static_cast<uint32_t>(set.size());
  state.exits = exits;
  for (const FrameId frame : set) frames_.first_bytes(frame, state.first);
  pool_.insert(pool_.end(), set.begin(), set.end());
  bytes_ += sizeof(State) + set.size() * sizeof(FrameId) + 8;
  states_.push_back(state);
  return id;
}

int32_t LocalStates::intern(FrameSet set) { return intern_scratch(set); }

void LocalStates::grow() {
  const size_t mask = std::max(kTableMin, 2 * table_.size()) - 1;
  table_.assign(mask + 1, kNoState);
  for (size_t i = 0; i < states_.size(); ++i) {
    const State& s = states_[i];
    size_t place = hash_of({pool_.data() + s.begin, s.size}, s.exits) & mask;
    while (table_[place] != kNoState) place = (place + 1) & mask;
    table_[place] = static_cast<int32_t>(i);
  }
}

int32_t LocalStates::expand(int32_t state, uint8_t byte) {
  scratch_.clear();
  const uint32_t begin = states_[static_cast<size_t>(state)].begin;
  const uint32_t end = begin + states_[static_cast<size_t>(state)].size;
  for (uint32_t i = begin; i < end; ++i) frames_.step(pool_[i], byte, scratch_);
  frames_.merge(scratch_);
  const int32_t t = intern_scratch(scratch_);
  State& s = states_[static_cast<size_t>(state)];
  if (s.table < 0 && s.known < kFewBytes) {
    s.bytes[s.known] = byte;
    s.to[s.known++] = t;
    return t;
  }
  if (s.table < 0) {
    s.table = static_cast<int32_t>(tables_.size());
    tables_.push_back(std::make_unique<Table>());
    Table& table = *tables_.back();
    table.fill(kUnknown);
    for (uint8_t i = 0; i < s.known; ++i) table[s.bytes[i]] = s.to[i];
    bytes_ += sizeof(Table);
  }
  (*tables_[static_cast<size_t>(s.table)])[byte] = t;
  return t;
}

void LocalStates::clear() {
  states_.clear();
  pool_.clear();
  tables_.clear();
  table_.clear();
  bytes_ = 0;
}

}  // namespace tensorfold::grammar
