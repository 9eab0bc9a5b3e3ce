// A vocabulary small enough to try every token in every state, with what a real one has: single
// bytes, quotes with structure, escapes, halves of characters, digits, white space.
#pragma once

#include <memory>
#include <string>

#include "engine/grammar/vocab_image.h"

namespace tensorfold::grammar {

inline constexpr int32_t kEnd = 0, kThinkEnd = 1, kMarker = 2, kFirst = 3;

inline constexpr const char* kPieces[] = {"\":",
                                          "\": ",
                                          "\",",
                                          "\", \"",
                                          "{\"",
                                          "\"}",
                                          "}]",
                                          "[]",
                                          "{}",
                                          "]}",
                                          "true",
                                          "false",
                                          "null",
                                          "tru",
                                          "12",
                                          "123",
                                          "0.5",
                                          "-1",
                                          "1e",
                                          ", ",
                                          ",\n  ",
                                          "\n",
                                          "\n\n<",
                                          "  ",
                                          "    ",
                                          "name",
                                          "na",
                                          "value",
                                          "kind",
                                          "\"name",
                                          "\"kind\"",
                                          "a\"",
                                          "ab\":1",
                                          "\\\"",
                                          "\\n",
                                          "\\u00",
                                          "\\u",
                                          "\\u00e9",
                                          "\\u001",
                                          "        ",
                                          "  \"a",
                                          "\xC3\xA9",
                                          "\xE2\x82",
                                          "\xAC",
                                          "\xC3",
                                          "abcdefgh",
                                          "x\": \"y",
                                          "</",
                                          "<",
                                          " calls>\n",
                                          " invoke",
                                          " parameter name=\"",
                                          "\" string=\"true\">",
                                          "\" string=\"false\">",
                                          ">\n",
                                          "hello",
                                          "\"\"",
                                          "1,",
                                          "1]",
                                          "7}",
                                          "\"a\",\"b\"",
                                          "2024-",
                                          "-01-",
                                          "@",
                                          "ex.com"};

// Single bytes and pieces as a real vocabulary has them: quotes with structure, escapes, halves of
// characters, digits, white space.
inline std::shared_ptr<const VocabImage> vocabulary() {
  VocabSpec spec;
  spec.bytes.assign(kFirst, "");
  for (int b = 0; b < 256; ++b) spec.bytes.push_back(std::string(1, static_cast<char>(b)));
  for (const char* piece : kPieces) spec.bytes.emplace_back(piece);
  spec.mask_tokens = static_cast<int32_t>(spec.bytes.size()) + 5;  // padded, as logits are
  spec.end_ids = {kEnd};
  spec.think_end_id = kThinkEnd;
  spec.tool_marker_id = kMarker;
  return *VocabImage::build(std::move(spec));
}

}  // namespace tensorfold::grammar
