// Automata over bytes: what every terminal of a grammar is compiled to.
//
// A Dfa is trimmed (from every state some accepted text can be reached), so a live state is never a
// dead end. Accept values are labels: 0 means "not accepted". Immutable once built; any thread.
// Texts are UTF-8: a "character" is a code point, and complement means "among valid UTF-8".
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold::grammar {

inline constexpr int32_t kDfaDead = -1;
inline constexpr size_t kDfaStatesMax = 40'000;              // of one automaton
inline constexpr uint64_t kDfaWorkMax = uint64_t{40} << 20;  // elementary steps of one build
// Transitions; larger tables stay as they are.
inline constexpr size_t kDfaMinimizeMax = size_t{1} << 16;
inline constexpr uint32_t kCharsNever = UINT32_MAX;

struct Dfa {
  std::array<uint8_t, 256> byte_class{};
  int32_t classes = 1;
  std::vector<int32_t> next;        // [states * classes], kDfaDead where nothing follows
  std::vector<uint32_t> accept;     // [states] label, 0 = no
  std::vector<uint32_t> min_chars;  // [states] code points still needed until accepted
  int32_t start = kDfaDead;         // kDfaDead: the empty language
  bool universal = false;           // all valid UTF-8; state `start` is the only accepting one

  bool empty() const { return start == kDfaDead; }
  size_t states() const { return accept.size(); }
  int32_t step(int32_t state, uint8_t byte) const {
    return next[static_cast<size_t>(state) * static_cast<size_t>(classes) + byte_class[byte]];
  }
  uint32_t label(int32_t state) const { return accept[static_cast<size_t>(state)]; }
  size_t bytes() const { return next.size() * 4 + accept.size() * 8 + sizeof(Dfa); }
};
using DfaPtr = std::shared_ptr<const Dfa>;

// Runs `text` through; the label reached, 0 when refused.
uint32_t dfa_run(const Dfa& dfa, std::string_view text);

// A nondeterministic automaton under construction. Edges consume bytes; the other three kinds
// consume nothing and hold always, only before the first byte, or only after the last.
class Nfa {
 public:
  enum class Free : unsigned char { kAlways, kAtStart, kAtEnd };
  struct Edge {
    uint8_t low, high;
    int32_t to;
  };
  struct FreeEdge {
    Free when;
    int32_t to;
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<FreeEdge> free;
  };

  int32_t add();
  void edge(int32_t from, uint8_t low, uint8_t high, int32_t to) {
    states_[static_cast<size_t>(from)].edges.push_back({low, high, to});
  }
  void free_edge(int32_t from, int32_t to, Free when = Free::kAlways) {
    states_[static_cast<size_t>(from)].free.push_back({when, to});
  }
  // Every code point of [low, high] but surrogates, as UTF-8.
  void code_points(int32_t from, uint32_t low, uint32_t high, int32_t to);
  void text(int32_t from, std::string_view bytes, int32_t to);
  const std::vector<State>& states() const { return states_; }

 private:
  std::vector<State> states_;
  // States inside characters that read one byte of a range and go to a state: by state and range.
  std::unordered_map<uint64_t, int32_t> ends_;
};

// Subset construction; kInvalidArgument when a bound is passed.
Result<DfaPtr> nfa_to_dfa(const Nfa& nfa, int32_t start, int32_t final);

// Pairs of states, each side may die alone (its label is then 0). `combine` must be 0 for (0, 0).
Result<DfaPtr> dfa_product(const Dfa& a, const Dfa& b,
                           const std::function<uint32_t(uint32_t, uint32_t)>& combine);
// Whether some text is in both; cheaper than to build what is.
bool dfa_meet(const Dfa& a, const Dfa& b);
Result<DfaPtr> dfa_intersect(const Dfa& a, const Dfa& b);
Result<DfaPtr> dfa_union(const Dfa& a, const Dfa& b);
Result<DfaPtr> dfa_subtract(const Dfa& a, const Dfa& b);  // in a, not in b
// Texts of `a` with at least `chars` code points.
Result<DfaPtr> dfa_at_least(const Dfa& a, uint32_t chars);

// Code points of the longest accepted text, kCharsNever where there is no longest.
uint32_t dfa_longest_chars(const Dfa& dfa);

DfaPtr dfa_universal();  // all valid UTF-8
// Exactly these texts. With `labels` the label of words[i] is i + 1 (of the last among equal
// ones), else 1.
Result<DfaPtr> dfa_words(const std::vector<std::string>& words, bool labels = false);

// Explores states given by value: key, label and successors by byte. `step` gives false for none.
class DfaExplorer {
 public:
  using Key = std::vector<int64_t>;
  using Step = std::function<bool(const Key&, uint8_t, Key&)>;
  using Label = std::function<uint32_t(const Key&)>;
  // `alphabet`: the bytes that may lead anywhere.
  static Result<DfaPtr> build(const Key& start, std::string_view alphabet, const Step& step,
                              const Label& label);
};

// By state of a table of any width: states with the same number are equal, -1 leads nowhere.
std::vector<int32_t> dfa_blocks(const Dfa& raw);
// Trims, minimizes and measures a table; used by every builder above.
DfaPtr dfa_finish(Dfa raw);
// The same for a table of which no two states are equal and every state leads to an accepted text.
// What it says of min_chars, if anything, is kept.
DfaPtr dfa_finish_minimal(Dfa raw);

Status too_large(std::string_view what);

}  // namespace tensorfold::grammar
