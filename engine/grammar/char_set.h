// Sets of code points as sorted, separate ranges. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace tensorfold::grammar {

using CharRange = std::pair<uint32_t, uint32_t>;  // both ends belong to it
using CharSet = std::vector<CharRange>;

inline constexpr uint32_t kCodePointMax = 0x10FFFF;

void char_set_normalize(CharSet& set);
CharSet char_set_negate(CharSet set);
void char_set_add(CharSet& set, const CharSet& other);

CharSet char_set_digits();   // 0-9
CharSet char_set_word();     // A-Z a-z 0-9 _
CharSet char_set_space();    // ECMA-262 WhiteSpace and LineTerminator
CharSet char_set_no_line();  // everything but ECMA-262 LineTerminator: "."

// A general category by its short or long name ("L", "Lu", "Letter"); nothing for other names.
std::optional<CharSet> char_set_category(std::string_view name);

}  // namespace tensorfold::grammar
