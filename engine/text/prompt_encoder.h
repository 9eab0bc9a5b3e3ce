// A conversation to the model's prompt, byte for byte as the reference encoder writes it.
//
// Formula source: DeepSeek's encoding rules for V4, V4-0731 and V4.1 (docs/prompt-format.md).
// Pure functions; nothing is escaped, because the format escapes nothing: which bytes came from
// the client is told by EncodedPrompt::plain, and the tokenizer keeps those from becoming control
// tokens.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/engine.h"
#include "engine/text/prompt_message.h"
#include "engine/text/tokenizer.h"

namespace tensorfold {

// Markers of the format, looked up in the tokenizer by these contents.
inline constexpr std::string_view kBosText = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEosText = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kSystemText = "<｜System｜>";
inline constexpr std::string_view kUserText = "<｜User｜>";
inline constexpr std::string_view kAssistantText = "<｜Assistant｜>";
inline constexpr std::string_view kReminderText = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkOpenText = "<think>";
inline constexpr std::string_view kThinkCloseText = "</think>";
inline constexpr std::string_view kDsmlText = "｜DSML｜";
inline constexpr std::string_view kFimBeginText = "<｜fim▁begin｜>";
inline constexpr std::string_view kFimHoleText = "<｜fim▁hole｜>";
inline constexpr std::string_view kFimEndText = "<｜fim▁end｜>";
inline constexpr std::string_view kImageText = "<｜deepseek_image｜>";

// Names of the tags of a tool-call block, as they follow kDsmlText.
struct DsmlNames {
  std::string_view calls, invoke, parameter;
};
DsmlNames dsml_names(PromptFormat format);

struct EncodedPrompt {
  std::string text;
  std::vector<TextSpan> plain;     // bytes that came from the client (ascending, not overlapping)
  std::vector<Json> images;        // one per placeholder, in prompt order
  bool ends_in_reasoning = false;  // the text ends with <think>: the reply starts with reasoning
};

// Renders `messages`. Errors are kInvalidArgument with a reason (and a param where one is known):
//   invalid_effort, invalid_task, empty_content, invalid_thinking  (the reference: AssertionError)
//   unknown_role                                                   (NotImplementedError)
//   image_source, image_placeholder                                (ValueError)
//   null_content, content_type                                     (TypeError)
//   tool_call_arguments                                            (AttributeError)
Result<EncodedPrompt> encode_messages(std::span<const PromptMessage> messages,
                                      const PromptOptions& options);

// The serving form. Tools and the response's format go to the first system message (an empty one is
// put first when there is none); a missing content is empty; images are refused with the reason
// unsupported_content and the param messages[i].content[j] until the vision part exists, unless
// `allow_images`.
Result<EncodedPrompt> encode_prompt(const Prompt& prompt, PromptFormat format,
                                    bool allow_control_tokens, bool allow_images = false);

// The same from messages of prompt_message.h (a missing content is empty; images are allowed).
Result<EncodedPrompt> encode_serving(std::vector<PromptMessage> messages,
                                     const std::vector<Json>& tools,
                                     const ThinkingOptions& thinking, PromptFormat format,
                                     bool allow_control_tokens,
                                     std::optional<Json> response_format = std::nullopt);

// The serving form down to ids (prompt.ids, when set, are checked against the vocabulary and
// returned). With allow_control_tokens, control text inside messages becomes control tokens.
struct TokenizedPrompt {
  std::vector<TokenId> ids;
  bool ends_in_reasoning = false;
};
// A prompt of raw text is not rendered; with a suffix it becomes BOS, begin, text, hole, suffix,
// end, and neither text holds control tokens (reason no_fim for a vocabulary without the tokens).
Result<TokenizedPrompt> tokenize_prompt(const Prompt& prompt, const Tokenizer& tokenizer,
                                        PromptFormat format, bool allow_control_tokens);

}  // namespace tensorfold
