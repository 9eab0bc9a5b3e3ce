// The body of POST /v1/messages (Anthropic) -> the same call that a chat body makes. Conversations
// are in messages_blocks.cc.
#include <utility>

#include "daemon/api/bodies.h"
#include "daemon/api/field_rows.h"
#include "daemon/api/field_schemas.h"
#include "daemon/api/fields.h"
#include "daemon/api/json_read.h"
#include "daemon/api/messages_blocks.h"
#include "daemon/api/messages_writer.h"

namespace tensorfold::api {
namespace {

using Defaults = ChatDefaults;

Status read_list(const Json& value, const Defaults&, ChatCall& call) {
  return read_turns(value, call.request.prompt.messages);
}

Status read_system(const Json& value, const Defaults&, ChatCall& call) {
  ChatMessage message;
  message.role = Role::kSystem;
  TF_RETURN_IF_ERROR(read_text_blocks(value, "system", message));
  if (message.content.empty()) return ok_status();
  auto& messages = call.request.prompt.messages;
  messages.insert(messages.begin(), std::move(message));
  return ok_status();
}

Status read_stop_sequences(const Json& value, const Defaults&, ChatCall& call) {
  if (!value.is_array()) return wrong_kind("stop_sequences", "a list of strings", value);
  return read_stop_list(value, "stop_sequences", call);
}

Status read_thinking_type(const Json& value, const Defaults&, ChatCall& call) {
  if (!value.is_object()) return wrong_kind("thinking", "an object with a type", value);
  for (const auto& [name, member] : value.as_object()) {
    const std::string path = "thinking." + name;
    if (name == "type") {
      TF_ASSIGN_OR_RETURN(const std::string type, read_string(member, path));
      if (type != "enabled" && type != "disabled" && type != "adaptive") {
        return invalid_argument(path + " must be enabled, disabled or adaptive", path);
      }
      call.thinking.type = type != "disabled";
    } else if (name == "budget_tokens" && !member.is_null()) {
      TF_ASSIGN_OR_RETURN(call.request.prompt.thinking.budget,
                          read_int(member, path, 1, kReplyTokensMax));
    } else if (name != "budget_tokens" && name != "display") {
      return invalid_argument("unknown field " + path, path);
    }
  }
  return ok_status();
}

// Effort says how much, not whether: thinking has its own switch here.
Status read_output_config(const Json& value, const Defaults& defaults, ChatCall& call) {
  if (!value.is_object()) return wrong_kind("output_config", "an object", value);
  for (const auto& [name, member] : value.as_object()) {
    const std::string path = "output_config." + name;
    if (member.is_null()) continue;
    if (name == "effort") {
      ThinkingWishes wish;
      TF_RETURN_IF_ERROR(set_effort(member, path, defaults, wish));
      if (wish.effort) call.thinking.effort = wish.effort;
    } else if (name == "format") {
      TF_RETURN_IF_ERROR(read_output_form(member, path, call.form));
    } else {
      return invalid_argument("unknown field " + path, path);
    }
  }
  return ok_status();
}

Status read_output_format(const Json& value, const Defaults&, ChatCall& call) {
  return read_output_form(value, "output_format", call.form);
}

// Reasoning of earlier turns is kept as the model's encoder does; an edit that asks for that is
// met.
Status read_context_management(const Json& value, const Defaults&, ChatCall&) {
  const Json* edits = value.find("edits");
  if (!value.is_object() || edits == nullptr || !edits->is_array()) {
    return wrong_kind("context_management", "an object with a list of edits", value);
  }
  for (size_t i = 0; i < edits->as_array().size(); ++i) {
    const Json& edit = edits->as_array()[i];
    const Json* type = edit.find("type");
    const Json* keep = edit.find("keep");
    const bool thinking =
        type != nullptr && type->is_string() && type->as_string().rfind("clear_thinking", 0) == 0;
    if (thinking && keep != nullptr && keep->is_string() && keep->as_string() == "all") continue;
    const std::string path = item_path("context_management.edits", i);
    return invalid_argument(path + ": only an edit that keeps all thinking is supported", path);
  }
  return ok_status();
}

Status read_servers(const Json& value, const Defaults&, ChatCall&) {
  return must_be(value, Json::array({}), "mcp_servers");
}

constexpr auto kUsed = FieldUse::kUsed;
constexpr auto kIgnored = FieldUse::kIgnored;
constexpr auto kRefused = FieldUse::kRefused;

// clang-format off
constexpr ChatField kFields[] = {
    {"messages", kUsed, read_list,
     "turns of text, thinking, tool_use and tool_result; a final assistant turn is gone on with",
     kNeeded, kTurns},
    {"system", kUsed, read_system,
     "a text or a list of text blocks", "none", R"({"type":["string","array"]})"},
    kModelRow,
    {"max_tokens", kUsed, read_max_tokens,
     "reply tokens, thinking included; 0 computes the prompt alone",
     "up to the context", kReplyTokens},
    {"stop_sequences", kUsed, read_stop_sequences,
     "up to 16; the stop text is not returned", "none", kStops},
    kStreamRow,
    kTemperatureRow,
    kTopPRow,
    kTopKRow,
    {"thinking", kUsed, read_thinking_type,
     "{type: enabled, disabled or adaptive}, budget_tokens",
     "disabled", kThinkingTypes},
    {"output_config", kUsed, read_output_config,
     "effort, and format {type: json_schema, schema}", "none", R"({"type":"object"})"},
    {"output_format", kUsed, read_output_format,
     "{type: json_schema, schema}", "none", R"({"type":"object"})"},
    {"tools", kUsed, read_messages_tools,
     "custom tools; the form of calls is enforced",
     "none", R"({"type":"array","items":{"type":"object"}})"},
    {"tool_choice", kUsed, read_messages_choice,
     "auto, any, tool or none; disable_parallel_tool_use", "auto", R"({"type":"object"})"},
    {"context_management", kUsed, read_context_management,
     "an edit that keeps all thinking", "none", R"({"type":"object"})"},
    {"mcp_servers", kUsed, read_servers, "no other value is taken", "[]", R"({"const":[]})"},
    kMinPRow,
    kSeedRow,
    kPresencePenaltyRow,
    kFrequencyPenaltyRow,
    kRepetitionPenaltyRow,
    kSchemaInPromptRow,
    kLoopGuardRow,
    kDraftRow,
    kPriorityRow,
    kCacheSaltRow,

    kMetadataRow,
    kServiceTierRow,
    {"cache_control", kIgnored, nullptr, "the prefix cache needs no hint"},

    {"container", kRefused, nullptr, "there are no containers"},
    {"inference_geo", kRefused, nullptr, "there is one place"},
};
// clang-format on

Status settle(const ChatDefaults& defaults, ChatCall& call) {
  auto& messages = call.request.prompt.messages;
  const bool turns = !messages.empty() && messages.back().role != Role::kSystem;
  if (!turns) return invalid_argument("messages is missing", "messages");
  if (messages.back().role == Role::kAssistant) {
    call.request.prompt.continue_final = true;
    TF_RETURN_IF_ERROR(check_last_message(messages, true));
  }
  if (!call.thinking.type) call.thinking.type = false;
  return settle_reply(defaults, call);
}

Result<ChatCall> parse_messages(std::string_view body, const ChatDefaults& defaults) {
  TF_ASSIGN_OR_RETURN(const Json parsed, parse_body(body));
  ChatCall call = call_with(defaults);
  TF_RETURN_IF_ERROR(read_fields(parsed, kFields, defaults, call));
  TF_RETURN_IF_ERROR(settle(defaults, call));
  return call;
}

}  // namespace

std::span<const ChatField> messages_fields() { return kFields; }

Result<ReplyOrder> read_messages_order(std::string_view body, const ChatDefaults& defaults) {
  TF_ASSIGN_OR_RETURN(ChatCall call, parse_messages(body, defaults));
  const std::vector<std::string> stops = call.request.stop;
  ReplyOrder order = order_of(std::move(call), Dialect::kMessages);
  order.writer = make_messages_writer(order.stream, stops);
  return order;
}

Result<Prompt> read_count_body(std::string_view body, const ChatDefaults& defaults,
                               std::string* model) {
  TF_ASSIGN_OR_RETURN(ChatCall call, parse_messages(body, defaults));
  *model = std::move(call.model);
  return std::move(call.request.prompt);
}

}  // namespace tensorfold::api
