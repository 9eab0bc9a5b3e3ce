// How far an automaton goes on whatever comes, as long as only certain kinds of bytes do.
//
// Masks of patterns rest on it: where every text of a few kinds stays alive, whole classes of
// tokens are allowed without a look at each. Counts are lower bounds: exact or too small.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/grammar/dfa.h"
#include "engine/grammar/vocab_image.h"

namespace tensorfold::grammar {

inline constexpr uint32_t kRunForever = UINT32_MAX;

class ClosedRuns {
 public:
  explicit ClosedRuns(const Dfa& dfa);
  // Kinds whose every byte may come next (kBeyond: every first byte of a character may).
  uint32_t alive_kinds(int32_t state) const;
  // Texts of these kinds with at most so many bytes stay alive; kRunForever: all of them.
  uint32_t run(int32_t state, uint32_t kinds) const;

 private:
  // Bytes of a kind that the automaton tells apart: one of each class.
  std::array<std::vector<uint8_t>, kByteKinds> bytes_;
  const Dfa& dfa_;
};

}  // namespace tensorfold::grammar
