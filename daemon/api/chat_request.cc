// Entry of the translation: walks the body over the field table, then settles what depends on
// several fields.
#include "daemon/api/chat_request.h"

#include <algorithm>

#include "daemon/api/json_read.h"

namespace tensorfold::api {
namespace {

const ChatField* find_field(std::string_view name) {
  for (const ChatField& field : chat_fields())
    if (field.name == name) return &field;
  return nullptr;
}

Status read_member(const std::string& name, const Json& value, const ChatDefaults& defaults,
                   ChatCall& call) {
  const ChatField* field = find_field(name);
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

// An explicit switch wins over thinking.type, that over the effort, that over the server's default.
void settle_thinking(const ChatDefaults& defaults, ChatCall& call) {
  const ThinkingWishes& wish = call.thinking;
  ThinkingOptions& thinking = call.request.prompt.thinking;
  thinking.effort = wish.effort.value_or(kEffortDefault);
  thinking.enabled = defaults.thinking;
  if (wish.from_effort) thinking.enabled = *wish.from_effort;
  if (wish.type) thinking.enabled = *wish.type;
  if (wish.switched) thinking.enabled = *wish.switched;
  if (!thinking.enabled) thinking.budget.reset();
}

Status settle(const ChatDefaults& defaults, ChatCall& call) {
  if (call.request.prompt.messages.empty()) {
    return invalid_argument("messages is missing", "messages");
  }
  if (call.max_tokens && call.max_completion_tokens &&
      *call.max_tokens != *call.max_completion_tokens) {
    return invalid_argument("max_tokens and max_completion_tokens differ; give one of them",
                            "max_completion_tokens");
  }
  const auto most = call.max_completion_tokens ? call.max_completion_tokens : call.max_tokens;
  if (most) call.request.max_tokens = static_cast<int>(*most);
  if (call.stream_options_given && !call.stream) {
    return invalid_argument("stream_options needs stream: true", "stream_options");
  }
  if (call.top_logprobs >= 0 && !call.logprobs) {
    return invalid_argument("top_logprobs needs logprobs: true", "top_logprobs");
  }
  if (call.logprobs) call.request.top_logprobs = std::max(0, call.top_logprobs);
  if (call.tool_choice == ToolChoice::kNone) {
    call.request.prompt.tools.clear();
    call.form.tools.clear();
  }
  TF_ASSIGN_OR_RETURN(
      call.request.constraint,
      settle_constraint(std::move(call.form), call.request.parallel_tool_calls,
                        call.request.ignore_eos));
  settle_thinking(defaults, call);
  return ok_status();
}

}  // namespace

Result<ChatCall> parse_chat(std::string_view body, const ChatDefaults& defaults) {
  auto parsed = parse_json(body);
  if (!parsed.ok()) {
    return invalid_argument("the request body is not JSON: " + parsed.status().message());
  }
  if (!parsed->is_object()) {
    return invalid_argument("the request body must be a JSON object, not " +
                            std::string(kind_word(*parsed)));
  }
  ChatCall call;
  call.request.sampling.temperature = defaults.temperature;
  call.request.sampling.top_p = defaults.top_p;
  call.request.sampling.top_k = defaults.top_k;
  call.request.sampling.min_p = defaults.min_p;
  for (const auto& [name, value] : parsed->as_object()) {
    TF_RETURN_IF_ERROR(read_member(name, value, defaults, call));
  }
  TF_RETURN_IF_ERROR(settle(defaults, call));
  return call;
}

}  // namespace tensorfold::api
