// The body of POST /v1/chat/completions -> a native Request.
//
// Pure: no sockets, no engine, no clock; runs on the loop or on a worker. A field that is not
// known, or known and not supported, is a 400 that names it; fields that cannot change the answer
// are ignored (the table is in chat_fields.cc, in words in docs/api.md).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "daemon/api/constraint_fields.h"
#include "daemon/api/effort.h"
#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/engine.h"

namespace tensorfold::api {

inline constexpr size_t kMessagesMax = 8192;      // messages of one request
inline constexpr size_t kContentPartsMax = 1024;  // parts of one message
inline constexpr size_t kToolsMax = 512;
inline constexpr size_t kToolCallsMax = 512;  // calls of one assistant message
inline constexpr size_t kApiStopStringsMax = 16;
inline constexpr size_t kStopBytesMax = 256;      // of one stop string
inline constexpr size_t kApiLogitBiasMax = 1024;  // biased token ids
inline constexpr int kApiTopLogprobsMax = 20;
inline constexpr size_t kFunctionNameBytesMax = 128;

// What a request that does not say gets.
struct ChatDefaults {
  double temperature = 1.0;
  double top_p = 0.95;
  int top_k = 0;
  double min_p = 0;
  bool thinking = false;
  bool loop_guard = false;
  bool schema_in_prompt = false;
  EffortTable efforts;
};

// What the request said about thinking, before it is resolved.
struct ThinkingWishes {
  std::optional<bool> switched;     // chat_template_kwargs.thinking, enable_thinking
  std::optional<bool> type;         // thinking: {"type": "enabled"}
  std::optional<bool> from_effort;  // reasoning_effort: "none" is off, any other is on
  std::optional<int> effort;
  bool effort_from_kwargs = false;  // those win over the top level's
};

enum class ToolChoice : unsigned char { kAuto, kNone };

struct ChatCall {
  Request request;
  std::string model;  // as asked for; empty if the client named none
  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;
  bool seed_given = false;
  bool tools_given = false;  // also when tool_choice "none" took them out of the prompt
  ToolChoice tool_choice = ToolChoice::kAuto;
  ThinkingWishes thinking;
  ConstraintWishes form;
  std::optional<bool> schema_in_prompt;
  std::optional<int64_t> max_tokens, max_completion_tokens;
  int top_logprobs = -1;
  int prompt_logprobs = -1;
  bool stream_options_given = false;
  int n = 1;                     // choices
  bool progress = false;         // of a stream: prompt progress
  bool token_ids = false;        // the reply's ids are wanted
  bool prefill_only = false;     // max_tokens 0
  bool no_header_asked = false;  // add_generation_prompt false

  // Only where an API has them:
  std::vector<Prompt> prompts;  // /v1/completions
  bool echo = false;
  std::optional<std::string> suffix;
  bool add_bos = false;
  std::string previous;  // /v1/responses
  std::optional<std::string> instructions;
  bool store = true;
  Json metadata;
};

Result<ChatCall> parse_chat(std::string_view body, const ChatDefaults& defaults);

// One top-level field: what happens to it. Tests, docs and /openapi.json derive from the table.
enum class FieldUse : unsigned char { kUsed, kIgnored, kRefused };
inline constexpr std::string_view kNeeded = "(needed)";  // a fallback: there is none
struct ChatField {
  std::string_view name;
  FieldUse use;
  Status (*read)(const Json& value, const ChatDefaults& defaults, ChatCall& call);  // kUsed
  std::string_view note;
  std::string_view fallback = {};  // kUsed: what an absent one stands for
  std::string_view schema = {};    // kUsed: JSON Schema of its values; null is always taken, too
};
std::span<const ChatField> chat_fields();

// chat_messages.cc and chat_tools.cc
Status read_messages(const Json& value, const ChatDefaults& defaults, ChatCall& call);
Status read_tools(const Json& value, const ChatDefaults& defaults, ChatCall& call);
Status read_tool_choice(const Json& value, const ChatDefaults& defaults, ChatCall& call);
Result<ToolCall> read_tool_call(const Json& value, const std::string& path);

}  // namespace tensorfold::api
