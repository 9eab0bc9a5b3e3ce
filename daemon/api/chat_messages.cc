// The list of messages: roles, contents, parts, reasoning and calls that a client passes back.
#include <array>

#include "daemon/api/chat_request.h"
#include "daemon/api/fields.h"
#include "daemon/api/json_read.h"

namespace tensorfold::api {
namespace {

// Members that clients send back from replies and that carry nothing for the prompt.
constexpr std::array<std::string_view, 9> kIgnoredMembers = {"annotations",
                                                             "audio",
                                                             "cache_control",
                                                             "function_call",
                                                             "id",
                                                             "index",
                                                             "provider_specific_fields",
                                                             "reasoning_details",
                                                             "refusal"};
// Of those, the ones that must be empty: their content would be lost.
constexpr std::array<std::string_view, 3> kMustBeEmpty = {"audio", "function_call", "refusal"};

template <size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  for (const std::string_view n : names)
    if (n == name) return true;
  return false;
}

std::optional<Role> role_of(std::string_view name) {
  if (name == "system" || name == "developer") return Role::kSystem;
  if (name == "user") return Role::kUser;
  if (name == "assistant") return Role::kAssistant;
  if (name == "tool") return Role::kTool;
  if (name == "latest_reminder") return Role::kLatestReminder;
  return std::nullopt;
}

Result<ContentPart> read_part(const Json& value, const std::string& path) {
  if (!value.is_object()) return wrong_kind(path, "an object", value);
  const Json* type = value.find("type");
  if (type == nullptr || !type->is_string()) {
    return invalid_argument(path + ".type must be a string", path + ".type");
  }
  const std::string& name = type->as_string();
  ContentPart part;
  if (name == "text" || name == "input_text" || name == "output_text") {
    const Json* text = value.find("text");
    if (text == nullptr) return invalid_argument(path + ".text is missing", path + ".text");
    TF_ASSIGN_OR_RETURN(part.text, read_string(*text, path + ".text"));
    return part;
  }
  const bool image = name == "image_url" || name == "input_image" || name == "image";
  return invalid_argument(path + ": content of type '" + name.substr(0, 64) + "' is not supported" +
                              (image ? " (this server does not read images yet)" : ""),
                          path, "unsupported_content");
}

Status read_content(const Json& value, const std::string& path, ChatMessage& message) {
  if (value.is_null()) return ok_status();
  if (value.is_string()) {
    ContentPart part;
    part.text = value.as_string();
    message.content.push_back(std::move(part));
    return ok_status();
  }
  if (!value.is_array()) return wrong_kind(path, "a string or a list of parts", value);
  message.content_is_list = true;
  const Json::Array& parts = value.as_array();
  if (parts.size() > kContentPartsMax) {
    return invalid_argument(path + " has more than " + std::to_string(kContentPartsMax) + " parts",
                            path);
  }
  for (size_t j = 0; j < parts.size(); ++j) {
    TF_ASSIGN_OR_RETURN(ContentPart part, read_part(parts[j], item_path(path, j)));
    message.content.push_back(std::move(part));
  }
  return ok_status();
}

Status read_calls(const Json& value, const std::string& path, ChatMessage& message) {
  if (value.is_null()) return ok_status();
  if (!value.is_array()) return wrong_kind(path, "a list", value);
  if (message.role != Role::kAssistant) {
    if (value.as_array().empty()) return ok_status();
    return invalid_argument(path + " belongs to assistant messages only", path);
  }
  const Json::Array& calls = value.as_array();
  if (calls.size() > kToolCallsMax) {
    return invalid_argument(path + " has more than " + std::to_string(kToolCallsMax) + " calls",
                            path);
  }
  for (size_t j = 0; j < calls.size(); ++j) {
    TF_ASSIGN_OR_RETURN(ToolCall call, read_tool_call(calls[j], item_path(path, j)));
    message.tool_calls.push_back(std::move(call));
  }
  return ok_status();
}

Status read_member(const std::string& name, const Json& value, const std::string& base,
                   ChatMessage& message) {
  const std::string path = base + "." + name;
  if (name == "role") return ok_status();
  if (name == "content") return read_content(value, path, message);
  if (name == "tool_calls") return read_calls(value, path, message);
  if (contains(kIgnoredMembers, name)) {
    const bool empty = value.is_null() || (value.is_string() && value.as_string().empty());
    if (contains(kMustBeEmpty, name) && !empty) {
      return invalid_argument(path + " is not supported", path);
    }
    return ok_status();
  }
  if (value.is_null()) return ok_status();
  if (name == "name") {
    TF_ASSIGN_OR_RETURN(message.name, read_string(value, path));
    return ok_status();
  }
  if (name == "reasoning_content" || name == "reasoning") {
    TF_ASSIGN_OR_RETURN(std::string text, read_string(value, path));
    if (!message.reasoning || message.reasoning->empty()) message.reasoning = std::move(text);
    return ok_status();
  }
  if (name == "tool_call_id") {
    TF_ASSIGN_OR_RETURN(message.tool_call_id, read_string(value, path));
    return ok_status();
  }
  return invalid_argument("unknown field " + path, path);
}

Result<ChatMessage> read_message(const Json& value, const std::string& path) {
  if (!value.is_object()) return wrong_kind(path, "an object", value);
  const Json* role = value.find("role");
  if (role == nullptr) return invalid_argument(path + ".role is missing", path + ".role");
  TF_ASSIGN_OR_RETURN(const std::string name, read_string(*role, path + ".role"));
  const auto known = role_of(name);
  if (!known) {
    return invalid_argument(path + ".role must be system, developer, user, assistant or tool, " +
                                "not '" + name.substr(0, 64) + "'",
                            path + ".role");
  }
  ChatMessage message;
  message.role = *known;
  for (const auto& [member, content] : value.as_object()) {
    TF_RETURN_IF_ERROR(read_member(member, content, path, message));
  }
  return message;
}

}  // namespace

// The prompt of the model ends with the header of a reply after a user turn, a tool's result or a
// later system message; after anything else there is nothing to reply to.
Status check_last_message(const std::vector<ChatMessage>& messages, bool gone_on_with) {
  const size_t last = messages.size() - 1;
  const std::string path = item_path("messages", last);
  const bool assistant = messages[last].role == Role::kAssistant;
  if (gone_on_with) {
    if (!assistant) {
      return invalid_argument(
          path + " is not an assistant message: continue_final_message has nothing to go on with",
          "continue_final_message");
    }
    if (messages[last].tool_calls.empty()) return ok_status();
    return invalid_argument(path + ".tool_calls: calls cannot be continued", path + ".tool_calls");
  }
  if (assistant) {
    return invalid_argument(path +
                                " is an assistant message: end with a user message or a tool's "
                                "result, or say continue_final_message",
                            path);
  }
  if (messages.size() == 1 && messages[0].role == Role::kSystem) {
    return invalid_argument("messages holds no user message", "messages");
  }
  return ok_status();
}

Status read_messages(const Json& value, const ChatDefaults&, ChatCall& call) {
  if (!value.is_array()) return wrong_kind("messages", "a list", value);
  const Json::Array& list = value.as_array();
  if (list.empty()) return invalid_argument("messages must not be empty", "messages");
  if (list.size() > kMessagesMax) {
    return invalid_argument("messages has more than " + std::to_string(kMessagesMax) + " entries",
                            "messages");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    TF_ASSIGN_OR_RETURN(ChatMessage message, read_message(list[i], item_path("messages", i)));
    call.request.prompt.messages.push_back(std::move(message));
  }
  return ok_status();
}

}  // namespace tensorfold::api
