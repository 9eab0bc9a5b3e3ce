// How far an automaton goes on whatever comes, as long as only certain kinds of bytes do.
//
// Masks of patterns rest on it: where every text of a few kinds stays alive, whole classes of
// tokens are allowed without a look at each. Counts are lower bounds: exact or too small. Answers
// are remembered; not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/grammar/dfa.h"
#include "engine/grammar/vocab_image.h"

namespace tensorfold::grammar {

inline constexpr uint32_t kRunForever = UINT32_MAX;
inline constexpr uint32_t kRunLooked = 32;  // characters: longer runs that end are not followed

class ClosedRuns {
 public:
  explicit ClosedRuns(const Dfa& dfa);

  struct Closed {
    uint32_t kinds = 0;
    uint32_t chars = 0;  // texts of these kinds with at most so many stay alive; kRunForever: all
  };
  // From `state`, with kinds among `allowed` only: fewer and fewer kinds that stay alive for
  // longer. `left`: code points that the text may still have, kRunForever when they are not
  // bounded.
  const std::vector<Closed>& closed(int32_t state, uint32_t allowed, uint32_t left);
  // Kinds of which some byte goes on from some state.
  uint32_t ever() const { return ever_; }

 private:
  // Whose every byte may come next (kBeyond: every first byte of a character may).
  uint32_t alive_kinds(int32_t state) const;
  using Pair = std::pair<int32_t, uint8_t>;
  // How far texts of these kinds stay alive.
  uint32_t run(int32_t state, uint32_t kinds, uint32_t left, uint32_t& failed, uint32_t& led);
  template <typename Visit>
  uint32_t step_first(int32_t state, uint32_t kinds, Visit visit) const;
  template <typename Visit>
  uint32_t step_inner(int32_t state, uint8_t place, Visit visit) const;

  // Bytes of a kind that the automaton tells apart: one of each class.
  std::array<std::vector<uint8_t>, kByteKinds> bytes_;
  std::array<std::vector<uint8_t>, 3> inner_;  // later bytes of characters, by where they begin
  const Dfa& dfa_;
  uint32_t ever_ = 0;
  std::map<std::tuple<int32_t, uint32_t, uint32_t>, std::vector<Closed>> known_;
  std::vector<uint32_t> seen_;  // by state and place: when it was visited
  std::vector<uint32_t> via_;   // by state between characters: kinds that led there last
  uint32_t stamp_ = 0;
};

}  // namespace tensorfold::grammar
