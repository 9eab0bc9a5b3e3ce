// Runs a program over plain text, without a vocabulary: for checks and tests.
#pragma once

#include <string_view>

#include "engine/grammar/program.h"

namespace tensorfold::grammar {

// The token id that stands for the tool-call marker in programs made for text_match.
inline constexpr int32_t kTextMarkerId = 1 << 20;

struct TextVerdict {
  bool accepted = false;
  bool unfinished = false;  // all of it is allowed, but more must follow
  size_t at = 0;            // the first byte that is not allowed
};

// With tools, "｜DSML｜" in the text is the marker's token.
TextVerdict match_text(const Program& program, std::string_view text);

}  // namespace tensorfold::grammar
