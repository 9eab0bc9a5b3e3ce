// Equal parts of a schema become one: what is said twice is compiled, walked and remembered once.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/grammar/program.h"

namespace tensorfold::grammar {

// Nodes that describe the same values (the same shapes over equal nodes; recursion included) become
// one: references go to the first of them. `live`: by node; what is not is like no node at all.
void merge_equal_nodes(Program& program, const std::vector<char>& live);

// What can be reached from a node.
struct Reached {
  std::vector<uint32_t> objects, arrays;
};
Reached reached_from(const Program& program, int32_t root);

}  // namespace tensorfold::grammar
