// Regular expressions (ECMA-262 as JSON Schema uses it) to automata.
//
// Supported: literals, ., classes, \d \w \s and their opposites, \p{General_Category}, groups,
// alternation, greedy and lazy quantifiers (the language is the same), ^ and $ anywhere,
// \xHH \uHHHH \u{...} \cX. Refused with the offset, because it cannot be enforced as a regular
// language here: look-around, back-references, \b and \B, inline flags, scripts.
#pragma once

#include <string_view>

#include "engine/grammar/char_dfa.h"

namespace tensorfold::grammar {

inline constexpr size_t kRegexMaxBytes = 64 << 10;
inline constexpr int kRegexDepthMax = 200;          // nested groups
inline constexpr int kRegexRepeatMax = 20'000;      // of one quantifier
inline constexpr size_t kRegexExpandMax = 200'000;  // automaton states after repetition

enum class RegexMatch : unsigned char {
  kSearch,  // found anywhere in the text (JSON Schema's "pattern")
  kFull,    // the whole text
};

// kInvalidArgument: "pattern at offset N: reason".
Result<CharDfaPtr> regex_to_chars(std::string_view pattern, RegexMatch match);
// The same over bytes.
Result<DfaPtr> regex_to_dfa(std::string_view pattern, RegexMatch match);

}  // namespace tensorfold::grammar
