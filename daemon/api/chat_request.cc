// Entry of the translation: walks the body over the field table, then settles what depends on
// several fields.
#include "daemon/api/chat_request.h"

#include <algorithm>

#include "daemon/api/chat_writer.h"
#include "daemon/api/fields.h"
#include "daemon/api/json_read.h"
#include "daemon/api/reply_order.h"

namespace tensorfold::api {
namespace {

const ChatField* find_field(std::span<const ChatField> table, std::string_view name) {
  for (const ChatField& field : table)
    if (field.name == name) return &field;
  return nullptr;
}

Status read_member(const ChatField* field, const std::string& name, const Json& value,
                   const ChatDefaults& defaults, ChatCall& call) {
  if (field == nullptr) {
    const std::string shown = name.substr(0, 128);
    return invalid_argument("unknown field " + shown, shown);
  }
  if (value.is_null()) return ok_status();  // null is the same as absent
  switch (field->use) {
    case FieldUse::kUsed:
      return field->read(value, defaults, call);
    case FieldUse::kIgnored:
      return ok_status();
    case FieldUse::kRefused:
      break;
  }
  return invalid_argument(name + " is not supported: " + std::string(field->note), name);
}

Status settle(const ChatDefaults& defaults, ChatCall& call) {
  Request& request = call.request;
  if (request.prompt.messages.empty()) return invalid_argument("messages is missing", "messages");
  TF_RETURN_IF_ERROR(check_last_message(request.prompt.messages, request.prompt.continue_final));
  if (call.no_header_asked && !request.prompt.continue_final) {
    return invalid_argument("add_generation_prompt: false needs continue_final_message: true",
                            "add_generation_prompt");
  }
  if (call.top_logprobs >= 0 && !call.logprobs) {
    return invalid_argument("top_logprobs needs logprobs: true", "top_logprobs");
  }
  if (call.logprobs) request.top_logprobs = std::max(0, call.top_logprobs);
  TF_RETURN_IF_ERROR(settle_prompt_logprobs(call));
  return settle_reply(defaults, call);
}

}  // namespace

Status settle_reply(const ChatDefaults& defaults, ChatCall& call) {
  Request& request = call.request;
  if (call.tool_choice == ToolChoice::kNone) {
    request.prompt.tools.clear();
    call.form.tools.clear();
  }
  TF_RETURN_IF_ERROR(settle_limits(call));
  TF_ASSIGN_OR_RETURN(request.prompt.response_format,
                      form_for_prompt(call.form, call.schema_in_prompt, defaults.schema_in_prompt));
  TF_ASSIGN_OR_RETURN(
      request.constraint,
      settle_constraint(std::move(call.form), request.parallel_tool_calls, request.ignore_eos));
  settle_thinking(defaults, call);
  return ok_status();
}

Status settle_limits(ChatCall& call) {
  if (call.max_tokens && call.max_completion_tokens &&
      *call.max_tokens != *call.max_completion_tokens) {
    return invalid_argument("max_tokens and max_completion_tokens differ; give one of them",
                            "max_completion_tokens");
  }
  const auto most = call.max_completion_tokens ? call.max_completion_tokens : call.max_tokens;
  if (most) call.request.max_tokens = static_cast<int>(*most);
  if (most && call.request.min_tokens > *most) {
    return invalid_argument("min_tokens is above max_tokens", "min_tokens");
  }
  call.prefill_only = most && *most == 0;
  if (call.stream_options_given && !call.stream) {
    return invalid_argument("stream_options needs stream: true", "stream_options");
  }
  if (call.progress && !call.stream) {
    return invalid_argument("return_progress needs stream: true", "return_progress");
  }
  return ok_status();
}

Result<Json> parse_body(std::string_view body) {
  auto parsed = parse_json(body);
  if (!parsed.ok()) {
    return invalid_argument("the request body is not JSON: " + parsed.status().message());
  }
  if (!parsed->is_object()) {
    return invalid_argument("the request body must be a JSON object, not " +
                            std::string(kind_word(*parsed)));
  }
  return parsed;
}

Status read_fields(const Json& body, std::span<const ChatField> table, const ChatDefaults& defaults,
                   ChatCall& call) {
  for (const auto& [name, value] : body.as_object()) {
    TF_RETURN_IF_ERROR(read_member(find_field(table, name), name, value, defaults, call));
  }
  return ok_status();
}

ChatCall call_with(const ChatDefaults& defaults) {
  ChatCall call;
  call.request.sampling.temperature = defaults.temperature;
  call.request.sampling.top_p = defaults.top_p;
  call.request.sampling.top_k = defaults.top_k;
  call.request.sampling.min_p = defaults.min_p;
  call.request.loop_guard = defaults.loop_guard;
  return call;
}

Result<ChatCall> parse_chat(std::string_view body, const ChatDefaults& defaults) {
  TF_ASSIGN_OR_RETURN(const Json parsed, parse_body(body));
  ChatCall call = call_with(defaults);
  TF_RETURN_IF_ERROR(read_fields(parsed, chat_fields(), defaults, call));
  TF_RETURN_IF_ERROR(settle(defaults, call));
  return call;
}

void settle_calls(ReplyOrder& order) {
  Request& request = order.prompts[0];
  // Calls of earlier turns may make the model write another one: without tools nobody takes it.
  const auto& messages = request.prompt.messages;
  const bool earlier_calls =
      std::any_of(messages.begin(), messages.end(),
                  [](const ChatMessage& message) { return !message.tool_calls.empty(); });
  order.parse_calls = order.tools_given || earlier_calls;
  request.tool_calls_banned = order.parse_calls && order.hide_calls;
}

ReplyOrder order_of(ChatCall call, Dialect dialect) {
  ReplyOrder order;
  order.dialect = dialect;
  order.n = call.n;
  order.model = std::move(call.model);
  order.stream = call.stream;
  order.progress = call.progress;
  order.seed_given = call.seed_given;
  order.tools_given = call.tools_given;
  order.hide_calls = call.tool_choice == ToolChoice::kNone || !call.tools_given;
  order.prefill_only = call.prefill_only;
  order.prompts.push_back(std::move(call.request));
  settle_calls(order);
  return order;
}

Result<ReplyOrder> read_chat_order(std::string_view body, const ChatDefaults& defaults) {
  TF_ASSIGN_OR_RETURN(ChatCall call, parse_chat(body, defaults));
  const ChatLook look{call.n, call.include_usage, call.logprobs, call.token_ids,
                      call.prompt_logprobs};
  ReplyOrder order = order_of(std::move(call), Dialect::kChat);
  order.writer = make_chat_writer(order.stream, look);
  return order;
}

}  // namespace tensorfold::api
