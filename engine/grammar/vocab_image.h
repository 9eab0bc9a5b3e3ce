// The vocabulary as masks need it: every ordinary token's bytes in a prefix tree laid out in walk
// order, and the tokens that are plain JSON string text set apart with masks by length.
//
// Built once per tokenizer; immutable, any thread. Added and special tokens have no bytes here: a
// grammar reaches them only as symbols (end of turn, the tool-call marker), never inside text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold {
class Tokenizer;
}

namespace tensorfold::grammar {

inline constexpr int kVocabMaxTokens = 4 << 20;
inline constexpr size_t kTokenMaxBytes = 4096;

struct VocabSpec {
  std::vector<std::string> bytes;  // by id; empty: not an ordinary token
  int32_t mask_tokens = 0;         // width of the logits; at least bytes.size()
  std::vector<int32_t> end_ids;    // tokens that end the reply
  int32_t think_end_id = -1;       // "</think>", -1 when there is none
  int32_t tool_marker_id = -1;     // "｜DSML｜", -1 when there is none
};

class TokenTrie {
 public:
  struct Node {
    uint8_t byte = 0;
    uint16_t depth = 0;        // bytes from the root
    uint32_t end = 0;          // one past the last node below
    uint32_t token_begin = 0;  // into tokens(): those that end here
    uint32_t token_end = 0;
  };
  // Pairs of bytes and id, in any order.
  explicit TokenTrie(std::vector<std::pair<std::string_view, int32_t>> tokens);
  const std::vector<Node>& nodes() const { return nodes_; }  // [0] is the root
  const std::vector<int32_t>& tokens() const { return tokens_; }
  // The bytes from the root to `node`, appended.
  void path(uint32_t node, std::string& out) const;

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
};

class VocabImage {
 public:
  static Result<std::shared_ptr<const VocabImage>> build(VocabSpec spec);
  // end_ids: what ends a reply (the model's end of sentence).
  static Result<std::shared_ptr<const VocabImage>> from_tokenizer(const Tokenizer& tokenizer,
                                                                  int32_t mask_tokens,
                                                                  std::vector<int32_t> end_ids);

  const VocabSpec& spec() const { return spec_; }
  size_t words() const { return (static_cast<size_t>(spec_.mask_tokens) + 31) / 32; }
  const TokenTrie& all() const { return *all_; }
  const TokenTrie& rest() const { return *rest_; }  // tokens that are not plain string text
  // Plain string text of at most `chars` code points (all of it from safe_chars_max() on).
  const std::vector<uint32_t>& safe(uint32_t chars) const;
  uint32_t safe_chars_max() const { return static_cast<uint32_t>(safe_.size()) - 1; }
  const std::vector<uint32_t>& ordinary() const { return ordinary_; }

 private:
  VocabSpec spec_;
  std::unique_ptr<TokenTrie> all_, rest_;
  std::vector<std::vector<uint32_t>> safe_;
  std::vector<uint32_t> ordinary_;
};

}  // namespace tensorfold::grammar
