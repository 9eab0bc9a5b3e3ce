// Collects a prompt's text and remembers which bytes came from the client.
//
// A plain accumulator: one per prompt, one thread. Adjacent client texts make one span.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/prompt_encoder.h"

namespace tensorfold {

// Stands for an image placeholder inside a message's text between the passes and the rendering:
// a byte that valid UTF-8 never holds, so no client text can look like it.
inline constexpr char kImageMark = '\xFF';

class PromptWriter {
 public:
  // Text of the format: added tokens in it are control tokens.
  void control(std::string_view text) { text_ += text; }

  // Text of the client; image marks in it become placeholders.
  void client(std::string_view text) {
    while (true) {
      const size_t mark = text.find(kImageMark);
      plain(text.substr(0, mark));
      if (mark == std::string_view::npos) return;
      control(kImageText);
      text.remove_prefix(mark + 1);
    }
  }

  bool ends_with_control(std::string_view tail) const {
    const bool plain_end = !plain_.empty() && plain_.back().end > text_.size() - tail.size();
    return text_.size() >= tail.size() && !plain_end && std::string_view(text_).ends_with(tail);
  }
  size_t size() const { return text_.size(); }
  EncodedPrompt finish() && {
    EncodedPrompt out;
    out.text = std::move(text_);
    out.plain = std::move(plain_);
    return out;
  }

 private:
  void plain(std::string_view text) {
    if (text.empty()) return;
    const size_t begin = text_.size();
    text_ += text;
    if (!plain_.empty() && plain_.back().end == begin) {
      plain_.back().end = text_.size();
    } else {
      plain_.push_back({begin, text_.size()});
    }
  }

  std::string text_;
  std::vector<TextSpan> plain_;
};

}  // namespace tensorfold
