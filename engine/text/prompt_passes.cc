#include "engine/text/prompt_passes.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/text/prompt_writer.h"

namespace tensorfold {
namespace {

constexpr std::string_view kImageTextRewritten = "<|deepseek_image|>";

class ImagePass {
 public:
  ImagePass(ImageLiteral literal, std::vector<Json>& images) : literal_(literal), images_(images) {}

  Status message(PromptMessage& m) {
    if (m.content.kind == PromptContent::Kind::kText) {
      if (Status s = text(m.content.text, "a message's content"); !s.ok()) return s;
    }
    if (m.reasoning) {
      if (Status s = text(*m.reasoning, "a message's reasoning"); !s.ok()) return s;
    }
    if (m.content.kind == PromptContent::Kind::kBlocks && !m.content_blocks) {
      m.content_blocks = std::move(m.content.blocks);
      m.content = {};
    }
    if (!m.content_blocks || m.content_blocks->empty()) return {};
    if (Status s = blocks(*m.content_blocks); !s.ok()) return s;
    if (m.content.kind != PromptContent::Kind::kText) {
      m.content = PromptContent::of(joined_texts(*m.content_blocks));
    }
    return {};
  }

 private:
  Status text(std::string& t, std::string_view what) {
    if (t.find(kImageMark) != std::string::npos) {
      return invalid_argument(std::string(what) + " is not valid UTF-8", "messages",
                              "content_type");
    }
    if (literal_ == ImageLiteral::kKeep) return {};
    for (size_t at = t.find(kImageText); at != std::string::npos; at = t.find(kImageText, at)) {
      if (literal_ == ImageLiteral::kReject) {
        return invalid_argument(std::string(what) + " contains the image placeholder " +
                                    std::string(kImageText) + "; send images as content parts",
                                "messages", "image_placeholder");
      }
      t.replace(at, kImageText.size(), kImageTextRewritten);
    }
    return {};
  }

  Status blocks(std::vector<PromptBlock>& list) {
    for (PromptBlock& block : list) {
      switch (block.kind) {
        case PromptBlock::Kind::kText:
          if (Status s = text(block.text, "a text part"); !s.ok()) return s;
          break;
        case PromptBlock::Kind::kImage:
          if (block.image.is_null()) {
            return invalid_argument("an image part has no usable source", "messages",
                                    "image_source");
          }
          images_.push_back(std::move(block.image));
          block = PromptBlock{};
          block.text = kImageMark;
          break;
        case PromptBlock::Kind::kToolResult:
          if (block.content.kind == PromptContent::Kind::kBlocks) {
            if (Status s = blocks(block.content.blocks); !s.ok()) return s;
          }
          break;
        case PromptBlock::Kind::kOther:
          break;
      }
    }
    return {};
  }

  static std::string joined_texts(const std::vector<PromptBlock>& list) {
    std::string out;
    bool first = true;
    for (const PromptBlock& block : list) {
      if (block.kind != PromptBlock::Kind::kText) continue;
      if (!first) out += "\n\n";
      first = false;
      out += block.text;
    }
    return out;
  }

  ImageLiteral literal_;
  std::vector<Json>& images_;
};

PromptBlock tool_result_of(const PromptMessage& message) {
  PromptBlock block;
  block.kind = PromptBlock::Kind::kToolResult;
  block.tool_use_id = message.tool_call_id;
  block.content = message.content;
  if (block.content.kind == PromptContent::Kind::kMissing) block.content = PromptContent::of("");
  return block;
}

// A user message's content as one block. A null content has no block form: it stays what it is and
// fails at rendering, as in the reference.
PromptBlock text_block_of(const PromptContent& content) {
  PromptBlock block;
  if (content.kind == PromptContent::Kind::kText) {
    block.text = content.text;
  } else if (content.kind != PromptContent::Kind::kMissing) {
    block.kind = PromptBlock::Kind::kOther;
    block.content = content;
  }
  return block;
}

bool takes_blocks(const std::vector<PromptMessage>& merged) {
  return !merged.empty() && merged.back().role == "user" && merged.back().content_blocks;
}

}  // namespace

PromptContent PromptContent::of(std::string text) {
  PromptContent content;
  content.kind = Kind::kText;
  content.text = std::move(text);
  return content;
}

Status take_out_images(std::vector<PromptMessage>& messages, ImageLiteral literal,
                       std::vector<Json>& images) {
  ImagePass pass(literal, images);
  for (PromptMessage& message : messages) {
    if (Status s = pass.message(message); !s.ok()) return s;
  }
  return {};
}

std::vector<PromptMessage> merge_messages(std::span<const PromptMessage> messages,
                                          PromptFormat format) {
  std::vector<PromptMessage> merged;
  for (const PromptMessage& message : messages) {
    if (message.role == "tool") {
      if (!takes_blocks(merged)) {
        merged.emplace_back();
        merged.back().role = "user";
        merged.back().content_blocks.emplace();
      }
      merged.back().content_blocks->push_back(tool_result_of(message));
    } else if (message.role == "user") {
      std::vector<PromptBlock> blocks;
      if (format == PromptFormat::kV41 && message.content_blocks) {
        blocks = *message.content_blocks;
      } else {
        blocks.push_back(text_block_of(message.content));
      }
      if (takes_blocks(merged) && !merged.back().task) {
        auto& into = *merged.back().content_blocks;
        into.insert(into.end(), blocks.begin(), blocks.end());
        continue;
      }
      merged.push_back(message);
      merged.back().content_blocks = std::move(blocks);
      if (format != PromptFormat::kV41) {  // V4 keeps only content, task and wo_eos
        merged.back().tools.clear();
        merged.back().response_format.reset();
      }
    } else {
      merged.push_back(message);
    }
  }
  return merged;
}

void learn_call_order(const PromptMessage& message, CallOrder& order) {
  if (message.role != "assistant" || message.tool_calls.empty()) return;
  order.clear();
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const std::string& id = message.tool_calls[i].id;
    if (!id.empty()) order[id] = i;
  }
}

void sort_tool_results(std::span<PromptMessage> messages, CallOrder order) {
  const auto place = [&order](const PromptBlock& block) {
    const auto it = order.find(block.tool_use_id);
    return it == order.end() ? size_t{0} : it->second;
  };
  for (PromptMessage& message : messages) {
    learn_call_order(message, order);
    if (message.role != "user" || !message.content_blocks || order.empty()) continue;
    std::vector<PromptBlock> results;
    for (const PromptBlock& block : *message.content_blocks) {
      if (block.kind == PromptBlock::Kind::kToolResult) results.push_back(block);
    }
    if (results.size() < 2) continue;
    std::stable_sort(
        results.begin(), results.end(),
        [&](const PromptBlock& a, const PromptBlock& b) { return place(a) < place(b); });
    size_t next = 0;
    for (PromptBlock& block : *message.content_blocks) {
      if (block.kind == PromptBlock::Kind::kToolResult) block = std::move(results[next++]);
    }
  }
}

int last_user_index(std::span<const PromptMessage> messages, PromptFormat format) {
  const std::string_view other = format == PromptFormat::kV41 ? "system" : "developer";
  for (size_t i = messages.size(); i-- > 0;) {
    const std::string& role = messages[i].role;
    const bool counts = role == other && (format != PromptFormat::kV41 || i > 0);
    if (role == "user" || counts) return static_cast<int>(i);
  }
  return -1;
}

std::vector<PromptMessage> drop_reasoning(std::span<const PromptMessage> messages,
                                          PromptFormat format) {
  constexpr std::array<std::string_view, 5> kKept = {"user", "system", "tool", "latest_reminder",
                                                     "direct_search_results"};
  const int last_user = last_user_index(messages, format);
  std::vector<PromptMessage> kept;
  for (size_t i = 0; i < messages.size(); ++i) {
    const PromptMessage& message = messages[i];
    const bool known = std::find(kKept.begin(), kKept.end(), message.role) != kKept.end();
    if (known || static_cast<int>(i) >= last_user) {
      kept.push_back(message);
    } else if (message.role == "assistant") {
      kept.push_back(message);
      kept.back().reasoning.reset();
    }
  }
  return kept;
}

}  // namespace tensorfold
