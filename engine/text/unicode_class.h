// The character classes that the pre-tokenizer tells apart, one byte per code point.
//
// Categories come from utf8proc, brought to one Unicode version (16.0, what the reference
// tokenizer uses) by a table of additions, so the answer is the same with every utf8proc from 15.0
// on. Immutable after the first use; any thread.
#pragma once

#include <cstdint>

namespace tensorfold {

enum class CharClass : uint8_t {
  kOther = 0,    // Cc, Cf, Cn, Co, Cs that are not white space
  kLetter = 1,   // L*
  kMark = 2,     // M*
  kNumber = 3,   // N*
  kPunct = 4,    // P* and S*
  kSpace = 5,    // White_Space except the two below
  kNewline = 6,  // U+000A, U+000D
};

// Any value; surrogates and values above U+10FFFF are kOther.
CharClass char_class(char32_t code_point);

}  // namespace tensorfold
