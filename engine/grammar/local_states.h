// A lazily determinized automaton over pieces of stacks: sets of frames above a hole.
//
// A state is an interned set of frames whose stacks end in kHoleFrame instead of in what they
// really return to, so that equal pieces share their states wherever they stand. Transitions are
// computed once per state and byte. A state that contains the hole itself has an exit: the piece is
// complete there. Not thread-safe; belongs to a MaskWalk, which throws it away when it is too big.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/grammar/frames.h"

namespace tensorfold::grammar {

inline constexpr int32_t kNoState = -1;

class LocalStates {
 public:
  explicit LocalStates(Frames& frames) : frames_(frames) {}

  int32_t intern(FrameSet set);  // kNoState for the empty set
  int32_t step(int32_t state, uint8_t byte) {
    const State& s = states_[static_cast<size_t>(state)];
    if (s.table >= 0) {
      const int32_t t = (*tables_[static_cast<size_t>(s.table)])[byte];
      return t != kUnknown ? t : expand(state, byte);
    }
    for (uint8_t i = 0; i < s.known; ++i) {
      if (s.bytes[i] == byte) return s.to[i];
    }
    return expand(state, byte);
  }
  // Bytes that may lead on; all others lead nowhere.
  const ByteSet& first(int32_t state) const { return states_[static_cast<size_t>(state)].first; }
  // Threads that go on inside; an exit alone has none.
  bool alive(int32_t state) const { return states_[static_cast<size_t>(state)].size != 0; }
  bool exits(int32_t state) const { return states_[static_cast<size_t>(state)].exits; }
  void clear();
  size_t bytes() const { return bytes_; }

 private:
  static constexpr int32_t kUnknown = -2;
  static constexpr size_t kFewBytes = 3;
  using Table = std::array<int32_t, 256>;
  struct State {
    uint32_t begin = 0, size = 0;  // its threads in pool_, without the hole
    int32_t table = -1;            // into tables_
    bool exits = false;
    // Most states are left by few bytes: those, until there are more.
    uint8_t known = 0;
    std::array<uint8_t, kFewBytes> bytes{};
    std::array<int32_t, kFewBytes> to{};
    ByteSet first;
  };
  int32_t intern_scratch(FrameSet& set);
  void grow();
  int32_t expand(int32_t state, uint8_t byte);

  Frames& frames_;
  std::vector<State> states_;
  std::vector<FrameId> pool_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<int32_t> table_;  // open addressing over states_
  FrameSet scratch_;
  size_t bytes_ = 0;
};

}  // namespace tensorfold::grammar
