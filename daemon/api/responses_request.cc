// The body of POST /v1/responses -> the same call that a chat body makes. Items are in
// responses_items.cc.
#include <algorithm>
#include <utility>

#include "daemon/api/bodies.h"
#include "daemon/api/field_rows.h"
#include "daemon/api/field_schemas.h"
#include "daemon/api/fields.h"
#include "daemon/api/json_read.h"
#include "daemon/api/responses_items.h"
#include "daemon/api/responses_writer.h"

namespace tensorfold::api {
namespace {

using Defaults = ChatDefaults;
constexpr size_t kMetadataMembersMax = 16;

Status read_instructions(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.instructions, read_string(value, "instructions"));
  return ok_status();
}

Status read_output_tokens(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.max_tokens, read_int(value, "max_output_tokens", 1, kReplyTokensMax));
  return ok_status();
}

Status read_stream_hints(const Json& value, const Defaults&, ChatCall&) {
  if (!value.is_object()) return wrong_kind("stream_options", "an object", value);
  for (const auto& [name, member] : value.as_object()) {
    if (name == "include_obfuscation") continue;
    return invalid_argument("unknown field stream_options." + name, "stream_options." + name);
  }
  return ok_status();
}

Status read_reasoning(const Json& value, const Defaults& defaults, ChatCall& call) {
  if (!value.is_object()) return wrong_kind("reasoning", "an object", value);
  for (const auto& [name, member] : value.as_object()) {
    const std::string path = "reasoning." + name;
    if (member.is_null() || name == "summary" || name == "generate_summary") continue;
    if (name != "effort") return invalid_argument("unknown field " + path, path);
    TF_RETURN_IF_ERROR(set_effort(member, path, defaults, call.thinking));
  }
  return ok_status();
}

Status read_text_format(const Json& value, ChatCall& call) {
  const std::string path = "text.format";
  if (!value.is_object()) return wrong_kind(path, "an object", value);
  const Json* type = value.find("type");
  const std::string name = type != nullptr && type->is_string() ? type->as_string() : "";
  if (name != "json_schema") {
    const Status status = read_response_format(value, call.form);
    return status.ok()
               ? status
               : Status(status.code(), path + ": " + status.message(), path, status.reason());
  }
  Json::Object inner;
  for (const auto& [member, content] : value.as_object()) {
    if (member != "type" && !content.is_null()) inner.emplace_back(member, content);
  }
  const Status status = read_response_format(
      Json::object({{"type", Json::string(name)}, {"json_schema", Json::object(std::move(inner))}}),
      call.form);
  if (!status.ok()) {
    return Status(status.code(), path + ": " + status.message(), path, status.reason());
  }
  if (call.form.content) call.form.content->param = path + ".schema";
  return ok_status();
}

Status read_text(const Json& value, const Defaults&, ChatCall& call) {
  if (!value.is_object()) return wrong_kind("text", "an object", value);
  for (const auto& [name, member] : value.as_object()) {
    const std::string path = "text." + name;
    if (member.is_null()) continue;
    if (name == "format") {
      TF_RETURN_IF_ERROR(read_text_format(member, call));
    } else if (name == "verbosity") {
      TF_RETURN_IF_ERROR(must_be(member, Json::string("medium"), path));
    } else {
      return invalid_argument("unknown field " + path, path);
    }
  }
  return ok_status();
}

Status read_store(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.store, read_bool(value, "store"));
  return ok_status();
}

Status read_previous(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.previous, read_string(value, "previous_response_id"));
  return ok_status();
}

Status read_metadata(const Json& value, const Defaults&, ChatCall& call) {
  if (!value.is_object()) return wrong_kind("metadata", "an object", value);
  if (value.as_object().size() > kMetadataMembersMax) {
    return invalid_argument(
        "metadata has more than " + std::to_string(kMetadataMembersMax) + " members", "metadata");
  }
  call.metadata = value;
  return ok_status();
}

Status read_background(const Json& value, const Defaults&, ChatCall&) {
  return must_be(value, Json::boolean(false), "background");
}
Status read_truncation(const Json& value, const Defaults&, ChatCall&) {
  return must_be(value, Json::string("disabled"), "truncation");
}
Status read_top_logprobs(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(const int64_t n, read_int(value, "top_logprobs", 0, kApiTopLogprobsMax));
  call.top_logprobs = static_cast<int>(n);
  return ok_status();
}

// Reasoning comes in the clear, so what asks for an encrypted copy loses nothing.
Status read_include(const Json& value, const Defaults&, ChatCall& call) {
  if (!value.is_array()) return wrong_kind("include", "a list", value);
  for (size_t i = 0; i < value.as_array().size(); ++i) {
    const Json& item = value.as_array()[i];
    const std::string_view name = item.is_string() ? item.as_string() : std::string_view();
    call.logprobs = call.logprobs || name == "message.output_text.logprobs";
    if (name == "reasoning.encrypted_content" || name == "message.output_text.logprobs") continue;
    const std::string path = item_path("include", i);
    return invalid_argument(
        path + ": message.output_text.logprobs and reasoning.encrypted_content are taken", path);
  }
  return ok_status();
}

constexpr auto kUsed = FieldUse::kUsed;
constexpr auto kIgnored = FieldUse::kIgnored;
constexpr auto kRefused = FieldUse::kRefused;
constexpr std::string_view kIncludes =
    R"({"type":"array","items":{"enum":["message.output_text.logprobs",)"
    R"("reasoning.encrypted_content"]}})";

// clang-format off
constexpr ChatField kFields[] = {
    {"input", kUsed, read_input,
     "a text, or items: messages, function_call, function_call_output, reasoning",
     "needed, but for previous_response_id", R"({"type":["string","array"]})"},
    kModelRow,
    {"instructions", kUsed, read_instructions,
     "a system message in front, of this request alone", "none", kString},
    {"previous_response_id", kUsed, read_previous,
     "goes on with a stored conversation", "none", kString},
    {"store", kUsed, read_store,
     "true: kept in memory (1,024 responses, 256 MiB)", "true", kBoolean},
    {"metadata", kUsed, read_metadata,
     "up to 16 labels, given back", "none", R"({"type":"object","maxProperties":16})"},
    kStreamRow,
    {"stream_options", kUsed, read_stream_hints,
     "include_obfuscation, which changes nothing", "none", R"({"type":"object"})"},
    {"max_output_tokens", kUsed, read_output_tokens,
     "reply tokens, reasoning included", "up to the context", kSomeTokens},
    kTemperatureRow,
    kTopPRow,
    {"reasoning", kUsed, read_reasoning,
     "effort: none, a name, or 1..100; turns thinking on", "see Thinking", R"({"type":"object"})"},
    {"text", kUsed, read_text,
     "format: text, json_object or json_schema; verbosity: medium", "text", R"({"type":"object"})"},
    {"tools", kUsed, read_responses_tools,
     "functions; the form of calls is enforced",
     "none", R"({"type":"array","items":{"type":"object"}})"},
    {"tool_choice", kUsed, read_responses_choice,
     "auto, required, a function, allowed_tools, or none",
     "auto", R"({"type":["string","object"]})"},
    kParallelToolCallsRow,
    {"top_logprobs", kUsed, read_top_logprobs,
     "0..20 alternatives; above 0 as include of message.output_text.logprobs",
     "0", R"({"type":"integer","minimum":0,"maximum":20})"},
    {"truncation", kUsed, read_truncation,
     "no other value is taken", "disabled", R"({"const":"disabled"})"},
    {"background", kUsed, read_background,
     "no other value is taken", "false", R"({"const":false})"},
    {"include", kUsed, read_include,
     "message.output_text.logprobs; reasoning.encrypted_content, which changes nothing",
     "none", kIncludes},
    kTopKRow,
    kMinPRow,
    kSeedRow,
    kSchemaInPromptRow,
    kLoopGuardRow,
    kDraftRow,
    kPriorityRow,
    kCacheSaltRow,

    kUserRow,
    kSafetyIdentifierRow,
    kPromptCacheKeyRow,
    kPromptCacheRetentionRow,
    kServiceTierRow,
    {"client_metadata", kIgnored, nullptr, "labels of the client's"},

    {"conversation", kRefused, nullptr, "use previous_response_id"},
    {"prompt", kRefused, nullptr, "there are no stored prompts"},
    {"max_tool_calls", kRefused, nullptr, "there are no built-in tools"},
};
// clang-format on

Status settle(const ChatDefaults& defaults, ChatCall& call) {
  auto& messages = call.request.prompt.messages;
  if (messages.empty() && call.previous.empty()) {
    return invalid_argument("input is missing", "input");
  }
  if (!messages.empty() && messages.back().role == Role::kAssistant) {
    return invalid_argument("input ends with an assistant's item: there is nothing to reply to",
                            "input");
  }
  if (call.instructions) {
    ChatMessage message;
    message.role = Role::kSystem;
    message.content.push_back({ContentPart::Kind::kText, *call.instructions, {}});
    messages.insert(messages.begin(), std::move(message));
  }
  call.logprobs = call.logprobs || call.top_logprobs > 0;
  if (call.logprobs) call.request.top_logprobs = std::max(0, call.top_logprobs);
  return settle_reply(defaults, call);
}

Json member_or(const Json& body, const char* name, Json otherwise) {
  const Json* found = body.find(name);
  if (found != nullptr && !found->is_null()) return *found;
  return otherwise;
}

ResponsesLook look_of(const Json& body, const ChatCall& call) {
  ResponsesLook look;
  look.instructions = call.instructions ? Json::string(*call.instructions) : Json::null();
  look.has_instructions = call.instructions.has_value();
  look.previous = call.previous;
  look.store = call.store;
  look.parallel = call.request.parallel_tool_calls;
  look.temperature = call.request.sampling.temperature;
  look.top_p = call.request.sampling.top_p;
  look.max_output_tokens = call.request.max_tokens;
  look.logprobs = call.logprobs;
  look.top_logprobs = std::max(0, call.top_logprobs);
  look.metadata = call.metadata.is_null() ? Json::object({}) : call.metadata;
  look.tools = member_or(body, "tools", Json::array({}));
  look.tool_choice = member_or(body, "tool_choice", Json::string("auto"));
  look.reasoning = member_or(body, "reasoning",
                             Json::object({{"effort", Json::null()}, {"summary", Json::null()}}));
  const Json plain = Json::object({{"format", Json::object({{"type", Json::string("text")}})}});
  look.text = member_or(body, "text", plain);
  if (look.text.find("format") == nullptr) look.text.set("format", *plain.find("format"));
  return look;
}

}  // namespace

std::span<const ChatField> responses_fields() { return kFields; }

Result<ReplyOrder> read_responses_order(std::string_view body, const ChatDefaults& defaults) {
  TF_ASSIGN_OR_RETURN(const Json parsed, parse_body(body));
  ChatCall call = call_with(defaults);
  TF_RETURN_IF_ERROR(read_fields(parsed, kFields, defaults, call));
  TF_RETURN_IF_ERROR(settle(defaults, call));
  ResponsesLook look = look_of(parsed, call);
  std::string previous = std::move(call.previous);
  ReplyOrder order = order_of(std::move(call), Dialect::kResponses);
  order.previous = std::move(previous);
  order.writer = make_responses_writer(order.stream, std::move(look));
  return order;
}

}  // namespace tensorfold::api
