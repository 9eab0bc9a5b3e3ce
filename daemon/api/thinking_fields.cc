// What a request says about thinking: five spellings, one meaning.
#include "daemon/api/fields.h"
#include "daemon/api/json_read.h"

namespace tensorfold::api {

using Defaults = ChatDefaults;

Status set_effort(const Json& value, const std::string& path, const Defaults& defaults,
                  ThinkingWishes& wish) {
  if (value.is_int()) {
    TF_ASSIGN_OR_RETURN(wish.effort, read_int(value, path, 1, 100));
    wish.from_effort = true;
    return ok_status();
  }
  TF_ASSIGN_OR_RETURN(const std::string name, read_string(value, path));
  if (name == "none") {
    wish.from_effort = false;
    wish.effort.reset();
    return ok_status();
  }
  const auto number = defaults.efforts.find(name);
  if (!number) {
    return invalid_argument(path + " must be none, " + EffortTable::names() + " or 1..100, not '" +
                                name.substr(0, 64) + "'",
                            path);
  }
  wish.effort = number;
  wish.from_effort = true;
  return ok_status();
}

Status read_effort(const Json& value, const Defaults& defaults, ChatCall& call) {
  ThinkingWishes wish = call.thinking;
  TF_RETURN_IF_ERROR(set_effort(value, "reasoning_effort", defaults, wish));
  if (!call.thinking.effort_from_kwargs) call.thinking = wish;
  return ok_status();
}

Status read_thinking(const Json& value, const Defaults&, ChatCall& call) {
  if (value.is_bool()) {
    call.thinking.type = value.as_bool();
    return ok_status();
  }
  if (!value.is_object()) return wrong_kind("thinking", "an object with a type", value);
  for (const auto& [name, member] : value.as_object()) {
    const std::string path = "thinking." + name;
    if (name == "type") {
      TF_ASSIGN_OR_RETURN(const std::string type, read_string(member, path));
      if (type != "enabled" && type != "disabled") {
        return invalid_argument(path + " must be enabled or disabled", path);
      }
      call.thinking.type = type == "enabled";
    } else if (name == "budget_tokens") {
      TF_ASSIGN_OR_RETURN(call.request.prompt.thinking.budget,
                          read_int(member, path, 1, kReplyTokensMax));
    } else {
      return invalid_argument("unknown field " + path, path);
    }
  }
  return ok_status();
}

Status read_enable_thinking(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.thinking.switched, read_bool(value, "enable_thinking"));
  return ok_status();
}

Status read_thinking_budget(const Json& value, const Defaults&, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(call.request.prompt.thinking.budget,
                      read_int(value, "thinking_budget", 1, kReplyTokensMax));
  return ok_status();
}

namespace {

Result<bool> read_mode(const Json& value, const std::string& path) {
  const std::string_view mode = value.is_string() ? value.as_string() : std::string_view();
  if (mode == "thinking" || mode == "chat") return mode == "thinking";
  return invalid_argument(path + " must be thinking or chat", path);
}

}  // namespace

Status read_template_kwargs(const Json& value, const Defaults& defaults, ChatCall& call) {
  if (!value.is_object()) return wrong_kind("chat_template_kwargs", "an object", value);
  for (const auto& [name, member] : value.as_object()) {
    const std::string path = "chat_template_kwargs." + name;
    const bool known = name == "thinking" || name == "enable_thinking" || name == "thinking_mode" ||
                       name == "reasoning_effort" || name == "drop_thinking";
    if (!known) return invalid_argument("unknown field " + path, path);
    if (member.is_null()) continue;
    if (name == "reasoning_effort") {
      TF_RETURN_IF_ERROR(set_effort(member, path, defaults, call.thinking));
      call.thinking.effort_from_kwargs = true;
    } else if (name == "drop_thinking") {
      TF_ASSIGN_OR_RETURN(call.request.prompt.thinking.drop_earlier, read_bool(member, path));
    } else if (name == "thinking_mode") {  // as the model's own encoder calls it
      TF_ASSIGN_OR_RETURN(call.thinking.switched, read_mode(member, path));
    } else {
      TF_ASSIGN_OR_RETURN(call.thinking.switched, read_bool(member, path));
    }
  }
  return ok_status();
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

}  // namespace tensorfold::api
