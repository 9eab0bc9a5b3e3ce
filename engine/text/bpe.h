// Byte-pair merging of one piece of text by rank.
//
// Immutable after construction; any thread. Work is O(n log n) for a piece of n bytes whatever its
// content: short pieces by scanning for the lowest rank, long ones with a heap of candidate pairs
// over a linked list. Both give the reference's order: lowest rank first, then leftmost.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace tensorfold {

struct BpeMerge {
  TokenId left = 0, right = 0;
  TokenId result = 0;
};

class Bpe {
 public:
  // Ranks are positions in `merges`; a pair listed twice has its later rank, as in the reference.
  Bpe(const std::array<TokenId, 256>& byte_tokens, const std::vector<BpeMerge>& merges);

  // Appends the tokens of `piece` to `out`. Adds the work done (pair look-ups and heap
  // comparisons) to *steps.
  void encode(std::string_view piece, std::vector<TokenId>& out, uint64_t* steps) const;

 private:
  struct Found {
    uint32_t rank = kNoRank;
    TokenId result = 0;
  };
  struct Slot {
    uint64_t key = kEmpty;
    Found found;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;
  static constexpr uint64_t kEmpty = UINT64_MAX;

  Found find(TokenId left, TokenId right) const;
  void encode_short(std::string_view piece, std::vector<TokenId>& out, uint64_t* steps) const;
  void encode_long(std::string_view piece, std::vector<TokenId>& out, uint64_t* steps) const;

  std::array<TokenId, 256> byte_tokens_;
  std::vector<Slot> slots_;  // open addressing, a power of two
  uint64_t mask_ = 0;
};

}  // namespace tensorfold
