// The subset construction over numbered classes of symbols, whatever the symbols are: bytes
// (nfa.cc) or characters (char_dfa.cc). Pure; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/grammar/dfa.h"

namespace tensorfold::grammar {

// A nondeterministic automaton whose edges consume a range of classes.
struct ClassNfa {
  struct Edge {
    int32_t low, high;  // classes
    int32_t to;
  };
  int32_t classes = 0;
  std::vector<Edge> edges;          // by state
  std::vector<size_t> first_edge;   // [states + 1]
  std::vector<Nfa::FreeEdge> free;  // by state
  std::vector<size_t> first_free;   // [states + 1]

  size_t states() const { return first_edge.size() - 1; }
};

// A table of `classes` columns, neither trimmed nor minimized; its byte_class says nothing.
// kInvalidArgument when a bound is passed.
Result<Dfa> determinize(const ClassNfa& nfa, int32_t start, int32_t final);

}  // namespace tensorfold::grammar
