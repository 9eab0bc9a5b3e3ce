// Finds added tokens in text: leftmost first, the longest at a place.
//
// A byte trie over the contents. Immutable after construction; any thread. A search looks at no
// more than kAddedTokenMaxBytes bytes for each place where a content could begin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/text/tokenizer.h"

namespace tensorfold {

class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin = 0, end = 0;
    TokenId id = -1;  // -1: none
  };

  void add(std::string_view content, TokenId id);
  bool empty() const { return nodes_.size() == 1; }

  // The first match inside text[from, to) that touches no byte of `plain` (ascending, not
  // overlapping). Adds the bytes looked at to *steps.
  Match find(std::string_view text, size_t from, size_t to, std::span<const TextSpan> plain,
             uint64_t* steps) const;

 private:
  struct Node {
    TokenId id = -1;
    bool has_children = false;
  };
  static uint64_t edge(uint32_t node, unsigned char byte) { return (uint64_t{node} << 8) | byte; }
  Match longest_at(std::string_view text, size_t at, size_t to, uint64_t* steps) const;

  std::vector<Node> nodes_{1};
  std::unordered_map<uint64_t, uint32_t> edges_;
  bool starts_[256] = {};
};

}  // namespace tensorfold
