// Cuts text into the pieces that byte-pair merges never cross: the V4 family's pre-tokenizer.
//
// The reference is three regular expressions, each applied to the pieces that the one before left,
// matches and the text between matches both becoming pieces:
//   1. \p{N}{1,3}
//   2. [U+4E00-U+9FA5 U+3040-U+309F U+30A0-U+30FF]+
//   3. [ASCII punctuation][A-Za-z]+ | [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
//      |  ?[\p{P}\p{S}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S) | \s+
// Written by hand because a backtracking engine is neither linear nor allowed to compile code
// under the service's memory rules. Linear in the text: no byte is looked at more than a few times.
#pragma once

#include <cstddef>
#include <string_view>

#include "engine/text/unicode_class.h"

namespace tensorfold {

// Bytes that are not UTF-8 count as characters of class kOther, one each.
class Pretokenizer {
 public:
  explicit Pretokenizer(std::string_view text) : text_(text) {}

  // The next piece, in order; all pieces together are the text. False at the end.
  bool next(std::string_view* piece);

 private:
  enum class Kind : unsigned char { kNumber, kCjk, kRest };  // what expressions 1 and 2 cut out
  struct Char {
    CharClass cls = CharClass::kOther;
    Kind kind = Kind::kRest;
    unsigned bytes = 0;  // 0 at the end of the text
  };

  Char char_at(size_t at) const;
  // The same, but at a place where the current piece of expressions 1 and 2 ends: bytes = 0.
  Char in_piece(size_t at) const;
  size_t skip_words(size_t at) const;  // past [\p{L}\p{M}]*
  size_t skip_punct(size_t at) const;  // past [\p{P}\p{S}]*[\r\n]*
  size_t match_space(size_t at) const;
  size_t match(size_t at, Char first) const;  // end of expression 3's match at `at`, or `at`
  size_t number_end(size_t at) const;

  std::string_view text_;
  size_t at_ = 0;
  Kind kind_ = Kind::kRest;
};

}  // namespace tensorfold
