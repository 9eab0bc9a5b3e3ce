// The serving form of the prompt encoder: engine.h's Prompt in, prompt or ids out.
#include "engine/text/prompt_encoder.h"

#include <algorithm>

namespace tensorfold {
namespace {

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kTool:
      return "tool";
    case Role::kLatestReminder:
      return "latest_reminder";
  }
  return "";
}

PromptContent content_of(const ChatMessage& message, PromptFormat format) {
  PromptContent content;
  if (message.content_is_list && format == PromptFormat::kV41) {
    content.kind = PromptContent::Kind::kBlocks;
    for (const ContentPart& part : message.content) {
      PromptBlock block;
      if (part.kind == ContentPart::Kind::kImage) {
        block.kind = PromptBlock::Kind::kImage;
        block.image = Json::object({{"type", Json::string("image")}});
      } else {
        block.text = part.text;
      }
      content.blocks.push_back(std::move(block));
    }
    return content;
  }
  std::string text;
  for (size_t i = 0; i < message.content.size(); ++i) {
    if (i > 0 && message.content_is_list) text += "\n\n";
    text += message.content[i].text;
  }
  return PromptContent::of(std::move(text));
}

PromptMessage message_of(const ChatMessage& message, PromptFormat format) {
  PromptMessage out;
  out.role = role_name(message.role);
  out.content = content_of(message, format);
  out.reasoning = message.reasoning;
  out.tool_call_id = message.tool_call_id;
  for (const ToolCall& call : message.tool_calls) {
    out.tool_calls.push_back({call.id, call.name, call.arguments});
  }
  return out;
}

Status check_parts(const Prompt& prompt, PromptFormat format, bool allow_images) {
  for (size_t i = 0; i < prompt.messages.size(); ++i) {
    const auto& parts = prompt.messages[i].content;
    for (size_t j = 0; j < parts.size(); ++j) {
      if (parts[j].kind != ContentPart::Kind::kImage) continue;
      if (allow_images && format == PromptFormat::kV41 && prompt.messages[i].content_is_list) {
        continue;
      }
      const std::string where =
          "messages[" + std::to_string(i) + "].content[" + std::to_string(j) + "]";
      return invalid_argument(where + ": images are not supported", where, "unsupported_content");
    }
  }
  return {};
}

// The V4 formats know names instead of numbers.
Json effort_of(int effort, PromptFormat format) {
  constexpr int kLow = 50, kMax = 100;
  switch (format) {
    case PromptFormat::kV41:
      return Json::integer(effort);
    case PromptFormat::kV4:
      return effort >= kMax ? Json::string("max") : Json::null();
    case PromptFormat::kV4_0731:
      if (effort >= kMax) return Json::string("max");
      return Json::string(effort <= kLow ? "low" : "high");
  }
  return Json::null();
}

}  // namespace

Result<EncodedPrompt> encode_prompt(const Prompt& prompt, PromptFormat format,
                                    bool allow_control_tokens, bool allow_images) {
  if (Status s = check_parts(prompt, format, allow_images); !s.ok()) return s;
  std::vector<PromptMessage> messages;
  for (const ChatMessage& message : prompt.messages) {
    messages.push_back(message_of(message, format));
  }
  if (prompt.continue_final && !messages.empty() && messages.back().role == "assistant") {
    messages.back().wo_eos = true;
    messages.back().open_reasoning = starts_in_reasoning(prompt);
  }
  Result<EncodedPrompt> out = encode_serving(std::move(messages), prompt.tools, prompt.thinking,
                                             format, allow_control_tokens, prompt.response_format);
  if (out.ok() && prompt.continue_final) out->ends_in_reasoning = starts_in_reasoning(prompt);
  return out;
}

Result<EncodedPrompt> encode_serving(std::vector<PromptMessage> messages,
                                     const std::vector<Json>& tools,
                                     const ThinkingOptions& thinking, PromptFormat format,
                                     bool allow_control_tokens,
                                     std::optional<Json> response_format) {
  if (!tools.empty() || response_format) {
    auto system = std::find_if(messages.begin(), messages.end(),
                               [](const PromptMessage& m) { return m.role == "system"; });
    if (system == messages.end()) {
      PromptMessage empty;
      empty.role = "system";
      empty.content = PromptContent::of("");
      system = messages.insert(messages.begin(), std::move(empty));
    }
    system->tools = tools;
    system->response_format = std::move(response_format);
  }
  PromptOptions options;
  options.format = format;
  options.thinking = thinking.enabled;
  options.effort = effort_of(thinking.effort, format);
  // Without control tokens in messages, the placeholder's text is harmless; with them it would
  // stand for an image that is not there.
  options.image_literal = allow_control_tokens ? ImageLiteral::kRewrite : ImageLiteral::kKeep;
  options.force_header = true;
  options.drop_thinking = thinking.drop_earlier;
  return encode_messages(messages, options);
}

namespace {

Result<std::vector<TokenId>> tokenize_raw(const RawPrompt& raw, const Tokenizer& tokenizer) {
  std::string text;
  std::vector<TextSpan> plain;
  const auto client = [&](const std::string& part) {
    if (!part.empty()) plain.push_back({text.size(), text.size() + part.size()});
    text += part;
  };
  if (raw.suffix) {
    for (const std::string_view token : {kFimBeginText, kFimHoleText, kFimEndText}) {
      if (!tokenizer.id_of(token)) {
        return invalid_argument("suffix: this model has no tokens to fill in the middle", "suffix",
                                "no_fim");
      }
    }
    text += kBosText;
    text += kFimBeginText;
    client(raw.text);
    text += kFimHoleText;
    client(*raw.suffix);
    text += kFimEndText;
    return tokenizer.encode(text, plain);
  }
  if (raw.add_bos) text += kBosText;
  client(raw.text);
  if (raw.control_tokens) plain.clear();
  return tokenizer.encode(text, plain);
}

}  // namespace

Result<TokenizedPrompt> tokenize_prompt(const Prompt& prompt, const Tokenizer& tokenizer,
                                        PromptFormat format, bool allow_control_tokens) {
  TokenizedPrompt out;
  if (prompt.ids) {
    for (const TokenId id : *prompt.ids) {
      if (id < 0 || id >= tokenizer.vocab_size()) {
        return invalid_argument("token id " + std::to_string(id) + " is not in the vocabulary of " +
                                    std::to_string(tokenizer.vocab_size()) + " tokens",
                                "prompt", "invalid_token");
      }
    }
    out.ids = *prompt.ids;
    return out;
  }
  if (prompt.raw) {
    TF_ASSIGN_OR_RETURN(out.ids, tokenize_raw(*prompt.raw, tokenizer));
    return out;
  }
  Result<EncodedPrompt> encoded = encode_prompt(prompt, format, allow_control_tokens);
  if (!encoded.ok()) return encoded.status();
  const std::span<const TextSpan> plain =
      allow_control_tokens ? std::span<const TextSpan>() : encoded->plain;
  out.ids = tokenizer.encode(encoded->text, plain);
  out.ends_in_reasoning = encoded->ends_in_reasoning;
  return out;
}

}  // namespace tensorfold
