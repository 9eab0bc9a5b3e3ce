// The vocabulary as masks need it: every ordinary token's bytes in prefix trees laid out in walk
// order, tokens that are plain JSON string text set apart with masks by length, and those sorted
// into classes by which kinds of bytes they hold.
//
// Built once per tokenizer; immutable, any thread. Added and special tokens have no bytes here: a
// grammar reaches them only as symbols (end of turn, the tool-call marker), never inside text.
// A vocabulary of 129,280 tokens takes about 27 MB and a few hundred milliseconds.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
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

// Several prefix trees in one array: a node is an index, whichever tree it is in.
class TokenForest {
 public:
  struct Node {
    uint8_t byte = 0;
    uint8_t lead = 0;          // JSON white space at the start of the path
    uint16_t depth = 0;        // bytes from its root
    uint32_t end = 0;          // one past the last node below
    uint32_t token_begin = 0;  // into tokens(): those that end here
    uint32_t token_end = 0;
  };
  using Pairs = std::vector<std::pair<std::string_view, int32_t>>;
  // Adds a tree of these tokens; its root.
  uint32_t add(Pairs tokens);
  // Once all trees are there: what is directly below each node, side by side.
  void index_children();
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  // Bytes of the nodes directly below, ascending, and those nodes.
  std::span<const uint8_t> child_bytes(uint32_t node) const {
    return {child_bytes_.data() + child_begin_[node], child_begin_[node + 1] - child_begin_[node]};
  }
  const uint32_t* children(uint32_t node) const { return children_.data() + child_begin_[node]; }
  size_t memory_bytes() const;

 private:
  std::vector<uint32_t> child_begin_;  // [nodes + 1]
  std::vector<uint8_t> child_bytes_;
  std::vector<uint32_t> children_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
};

// Kinds of bytes. A character beyond ASCII counts by its first byte where the token's text is valid
// UTF-8: blocks with white space or line ends in them, which patterns tell apart, and the others.
enum ByteKind : uint8_t {
  kHexLower,     // a-f
  kRestLower,    // g-z
  kHexUpper,     // A-F
  kRestUpper,    // G-Z
  kDigit,        // 0-9
  kSpace,        // ' '
  kUnderscore,   // _
  kMinus,        // -
  kDot,          // .
  kSlash,        // /
  kComma,        // ,
  kColonKind,    // :
  kAt,           // @
  kOtherPunct,   // the rest of printable ASCII, but for the next two
  kQuote,        // "
  kBackslash,    // '\'
  kControl,      // below 0x20, and 0x7F
  kBeyond,       // beyond ASCII
  kBeyondSpace,  // the same, from blocks with a space: U+0080.., U+1000.., U+2000.., U+3000..,
                 // U+F000..
  kBroken,       // pieces of characters
  kByteKinds
};
ByteKind ascii_kind(uint8_t byte);    // of bytes below 0x80
ByteKind beyond_kind(uint8_t first);  // of the first byte of a character
inline constexpr uint32_t kAnyBeyond = 1U << kBeyond | 1U << kBeyondSpace;

// Plain tokens (see VocabImage::safe) with the same lead that hold the same kinds of bytes behind
// it and are about as long. Many tokens are a word behind one space or mark: the lead is that byte,
// where there are enough of them, so that what may follow it counts and not what may follow a word.
struct TokenClass {
  uint8_t lead = 0;        // 0: none
  bool mixed = false;      // tokens of different kinds: `kinds` are those of all together
  uint32_t kinds = 0;      // bits of ByteKind, of the bytes behind the lead
  uint32_t min_bytes = 0;  // of whole tokens
  uint32_t max_bytes = 0;
  uint32_t min_chars = 0;  // code points, the same
  uint32_t max_chars = 0;
  uint32_t root = 0;            // their tree
  uint32_t nodes = 0;           // in it
  std::vector<uint32_t> dense;  // their bits, or
  std::vector<int32_t> sparse;  // their ids
};
// What plain text without a pattern allows from its start: tokens, and nodes of the tree of tokens
// that are not plain at which it was closed.
struct PlainText {
  std::vector<uint32_t> bits;
  std::vector<uint32_t> exits;
};
inline constexpr uint8_t kTokenLeads[] = {0, ' ', '-', '.', '_', '/', '('};

class VocabImage {
 public:
  static Result<std::shared_ptr<const VocabImage>> build(VocabSpec spec);
  // end_ids: what ends a reply (the model's end of sentence).
  static Result<std::shared_ptr<const VocabImage>> from_tokenizer(const Tokenizer& tokenizer,
                                                                  int32_t mask_tokens,
                                                                  std::vector<int32_t> end_ids);

  const VocabSpec& spec() const { return spec_; }
  size_t words() const { return (static_cast<size_t>(spec_.mask_tokens) + 31) / 32; }
  const TokenForest& forest() const { return forest_; }
  uint32_t all_root() const { return all_root_; }
  uint32_t rest_root() const { return rest_root_; }    // tokens that are not plain string text
  uint32_t quote_root() const { return quote_root_; }  // tokens with a quotation mark
  // All plain tokens, by lead in the order of kTokenLeads, then those of rare kinds.
  const std::vector<TokenClass>& classes() const { return classes_; }
  // Plain string text of at most `chars` code points (all of it from safe_chars_max() on).
  const std::vector<uint32_t>& safe(uint32_t chars) const;
  uint32_t safe_chars_max() const { return static_cast<uint32_t>(safe_.size()) - 1; }
  bool is_safe(int32_t id) const { return (safe_.back()[word(id)] >> (id % 32) & 1U) != 0; }
  // `key`: of an object's undeclared name; `empty`: it may be closed at once.
  const PlainText& plain(bool key, bool empty) const {
    return plain_[(key ? 2U : 0U) + (empty ? 1U : 0U)];
  }
  const std::vector<uint32_t>& ordinary() const { return ordinary_; }
  uint32_t longest_bytes() const { return longest_bytes_; }
  uint32_t longest_space() const { return longest_space_; }  // JSON white space in a row
  // JSON white space at the start of a token (UINT8_MAX: so much or more).
  uint32_t lead_of(int32_t id) const { return leads_[static_cast<size_t>(id)]; }
  // Tokens that begin with more of it than one, the most first; and all that begin with any.
  const std::vector<int32_t>& long_leads() const { return long_leads_; }
  const std::vector<uint32_t>& led_by_space() const { return led_by_space_; }
  size_t memory_bytes() const;

 private:
  static size_t word(int32_t id) { return static_cast<size_t>(id) / 32; }
  void add_classes();
  void add_leads();
  void add_plain();
  void add_class(uint8_t lead, uint32_t kinds, bool mixed, TokenForest::Pairs tokens);

  VocabSpec spec_;
  TokenForest forest_;
  uint32_t all_root_ = 0, rest_root_ = 0, quote_root_ = 0;
  uint32_t longest_bytes_ = 1, longest_space_ = 0;
  std::vector<TokenClass> classes_;
  std::vector<std::vector<uint32_t>> safe_;
  std::vector<uint32_t> ordinary_;
  std::array<PlainText, 4> plain_;
  std::vector<uint8_t> leads_;  // by id
  std::vector<int32_t> long_leads_;
  std::vector<uint32_t> led_by_space_;
};

}  // namespace tensorfold::grammar
