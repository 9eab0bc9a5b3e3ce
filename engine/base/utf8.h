// UTF-8: decoding one code point, validating, and finding an unfinished tail.
//
// Pure functions over bytes. "Valid" is Unicode's own definition (Unicode 15, table 3-7): no
// overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tensorfold {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

struct Utf8Step {
  char32_t code_point;  // kReplacementCharacter when !valid
  uint32_t bytes;       // >= 1; for an invalid sequence the maximal subpart (as Python counts it)
  bool valid;
  bool truncated;  // the text ends inside a sequence that could still become valid
};

// Decodes the code point that starts at text[at]; `at` must be inside the text.
Utf8Step utf8_step(std::string_view text, size_t at);

// The offset of the first byte that is not valid UTF-8, or npos.
size_t utf8_first_invalid(std::string_view text);

// Length in bytes of an unfinished sequence at the end of `text` (0..3): what an incremental
// decoder must hold back.
size_t utf8_unfinished_tail(std::string_view text);

void utf8_append(std::string& out, char32_t code_point);

// Replaces every invalid maximal subpart by U+FFFD.
std::string utf8_lossy(std::string_view bytes);

// What may be shown of text that came from elsewhere: one line of at most `bytes_max` bytes (cut
// between characters, then "..."), `instead` for each control character.
std::string shown_text(std::string_view text, size_t bytes_max, char instead = '?');

}  // namespace tensorfold
