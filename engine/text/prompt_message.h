// The conversation as the prompt encoder sees it: everything that the reference format can express.
//
// Richer than engine.h's Prompt, which serving uses: the test vectors need tasks, contexts,
// unfinished turns and content blocks too. Both convert to this (prompt_encoder.h, and
// prompt_json.h for JSON). Plain data, no invariants.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/json.h"

namespace tensorfold {

enum class PromptFormat : unsigned char {
  kV4,       // DeepSeek-V4-Flash / -Pro, April 2026
  kV4_0731,  // DeepSeek-V4-Flash-0731: another effort table
  kV41,      // DeepSeek-V4.1-Flash
};

struct PromptBlock;

// A message's (or a tool result's) content: the reference tells a missing one from null.
struct PromptContent {
  enum class Kind : unsigned char { kMissing, kNull, kText, kBlocks } kind = Kind::kMissing;
  std::string text;                 // kText
  std::vector<PromptBlock> blocks;  // kBlocks

  static PromptContent of(std::string text);
};

struct PromptBlock {
  enum class Kind : unsigned char { kText, kImage, kToolResult, kOther } kind = Kind::kText;
  std::string type;         // kOther: its "type", shown as [Unsupported TYPE]
  std::string text;         // kText
  Json image;               // kImage: the record that goes into EncodedPrompt::images
  std::string tool_use_id;  // kToolResult
  PromptContent content;    // kToolResult
};

struct PromptToolCall {
  std::string id;
  std::string name;
  Json arguments;  // an object, or a string that holds JSON (perhaps encoded twice)
};

struct PromptMessage {
  // "system", "developer", "user", "assistant", "tool", "latest_reminder", ...: kept as text, the
  // encoder decides what it knows.
  std::string role;
  PromptContent content;
  std::optional<std::vector<PromptBlock>> content_blocks;
  std::optional<std::string> reasoning;
  std::vector<PromptToolCall> tool_calls;
  std::string tool_call_id;
  std::vector<Json> tools;  // function objects, without the {"type": "function"} around them
  std::optional<Json> response_format;
  std::optional<std::string> task;
  bool wo_eos = false;          // an assistant turn to be continued: no end-of-sentence token
  bool open_reasoning = false;  // with wo_eos: its reasoning is not closed either
};

// What to do with text of a message that spells the image placeholder.
enum class ImageLiteral : unsigned char {
  kReject,   // an error, as the reference does
  kKeep,     // leave it: right when message text is tokenized as plain text
  kRewrite,  // write <|deepseek_image|> with ASCII bars, which is no token
};

struct PromptOptions {
  PromptFormat format = PromptFormat::kV41;
  bool thinking = false;
  std::vector<PromptMessage> context;  // already in the cache: only what follows it is rendered
  bool drop_thinking = true;
  bool add_bos = true;
  Json effort;  // null, an integer 1..100 (V4.1), or a name: low, high, max
  ImageLiteral image_literal = ImageLiteral::kReject;
  // Adds the assistant header also after a final assistant turn or a lone system message, where the
  // reference has none: a server always wants a reply.
  bool force_header = false;
};

}  // namespace tensorfold
