// The vocabulary of ScriptedText as the grammar engine sees it: tokens 6..62 are the letters
// 'G'..DEL, 63 spells "ab". For tests of replies of a given form over the scripted model.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "engine/grammar/vocab_image.h"
#include "tests/engine/scripted_model.h"

namespace tensorfold::scripted {

inline constexpr TokenId kFirstLetter = 6;

inline std::shared_ptr<const grammar::VocabImage> scripted_vocabulary() {
  grammar::VocabSpec spec;
  spec.bytes.assign(kVocab, "");
  for (TokenId id = kFirstLetter; id < kVocab - 1; ++id)
    spec.bytes[static_cast<size_t>(id)] = std::string(1, static_cast<char>('A' + id));
  spec.bytes[kVocab - 1] = "ab";
  spec.mask_tokens = kVocab;
  spec.end_ids = {kEos};
  spec.think_end_id = kThinkEnd;
  spec.tool_marker_id = kCallOpen;
  return *grammar::VocabImage::build(std::move(spec));
}

}  // namespace tensorfold::scripted
