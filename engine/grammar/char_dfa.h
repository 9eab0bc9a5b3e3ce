// Automata over characters (code points): patterns are determinized, minimized and sorted here,
// where a step is a character of one of a few classes, and only then spelled out in bytes.
//
// A CharDfa is trimmed and minimal (but for the bound of dfa_minimize.cc); labels as in Dfa. Texts
// that are not UTF-8 are in no language. Immutable once built; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/grammar/char_set.h"
#include "engine/grammar/dfa.h"

namespace tensorfold::grammar {

inline constexpr int32_t kNoClass = -1;  // of characters that lead nowhere from every state

// Code points by class: ranges without gaps from 0 on, the last one without an end.
struct CharClasses {
  std::vector<uint32_t> first;    // ascending; first[0] == 0
  std::vector<int32_t> class_of;  // by range
  int32_t count = 0;              // classes

  int32_t of(uint32_t code_point) const;
};

struct CharDfa {
  CharClasses classes;
  Dfa table;  // over these classes; byte_class and min_chars say nothing

  bool empty() const { return table.empty(); }
};
using CharDfaPtr = std::shared_ptr<const CharDfa>;

class CharNfa {
 public:
  int32_t add();
  // A character of a normalized set.
  void edge(int32_t from, const CharSet& set, int32_t to);
  void free_edge(int32_t from, int32_t to, Nfa::Free when = Nfa::Free::kAlways) {
    states_[static_cast<size_t>(from)].free.push_back({when, to});
  }
  size_t size() const { return states_.size(); }
  // The subset construction; kInvalidArgument when a bound is passed.
  Result<CharDfaPtr> determinize(int32_t start, int32_t final) const;

 private:
  struct State {
    std::vector<std::pair<int32_t, int32_t>> edges;  // set, to
    std::vector<Nfa::FreeEdge> free;
  };
  std::vector<State> states_;
  std::map<CharSet, int32_t> set_ids_;
  std::vector<const CharSet*> sets_;  // keys of set_ids_
};

// Runs `text` through; the label reached, 0 when refused.
uint32_t chars_run(const CharDfa& dfa, std::string_view text);
// Every text; its label: `always`, and bit i where parts[i] accepts it (at most 31 of them).
Result<CharDfaPtr> chars_sort_texts(const std::vector<CharDfaPtr>& parts, uint32_t always);
// The same language over the bytes of UTF-8.
Result<DfaPtr> chars_to_bytes(const CharDfa& dfa);

}  // namespace tensorfold::grammar
