// See the header.
#include "daemon/api/messages_blocks.h"

#include <array>
#include <utility>

#include "daemon/api/json_read.h"

namespace tensorfold::api {
namespace {

// Members of blocks that carry nothing for the prompt.
constexpr std::array<std::string_view, 8> kIgnoredMembers = {
    "type", "cache_control", "citations", "signature", "is_error", "caller", "id", "data"};

bool ignored(std::string_view name) {
  for (const std::string_view n : kIgnoredMembers)
    if (n == name) return true;
  return false;
}

Result<std::string> type_of(const Json& block, const std::string& path) {
  if (!block.is_object()) return wrong_kind(path, "an object", block);
  const Json* type = block.find("type");
  if (type == nullptr || !type->is_string()) {
    return invalid_argument(path + ".type must be a string", path + ".type");
  }
  return type->as_string();
}

Status only_members(const Json& block, const std::string& path,
                    std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : block.as_object()) {
    bool found = ignored(name);
    for (const std::string_view k : known) found |= k == name;
    if (!found) {
      return invalid_argument("unknown field " + path + "." + name.substr(0, 64),
                              path + "." + name);
    }
  }
  return ok_status();
}

Result<std::string> member_text(const Json& block, const std::string& path, const char* name) {
  const Json* text = block.find(name);
  const std::string where = path + "." + name;
  if (text == nullptr) return invalid_argument(where + " is missing", where);
  return read_string(*text, where);
}

Status unsupported_block(const std::string& type, const std::string& path) {
  return invalid_argument(path + ": content of type '" + type.substr(0, 64) + "' is not supported" +
                              (type == "image" ? " (this server does not read images yet)" : ""),
                          path, "unsupported_content");
}

void add_text(ChatMessage& message, std::string text) {
  ContentPart part;
  part.text = std::move(text);
  message.content.push_back(std::move(part));
}

Result<ChatMessage> tool_result(const Json& block, const std::string& path) {
  TF_RETURN_IF_ERROR(only_members(block, path, {"tool_use_id", "content"}));
  ChatMessage message;
  message.role = Role::kTool;
  TF_ASSIGN_OR_RETURN(message.tool_call_id, member_text(block, path, "tool_use_id"));
  if (const Json* content = block.find("content"); content != nullptr && !content->is_null()) {
    TF_RETURN_IF_ERROR(read_text_blocks(*content, path + ".content", message));
  }
  return message;
}

// An error about an OpenAI function, said in the words of the Anthropic tool that it was made of.
Status in_tool_words(const Status& status) {
  const auto renamed = [](std::string text) {
    constexpr std::pair<std::string_view, std::string_view> kWords[] = {
        {".function.parameters", ".input_schema"},
        {".function.arguments", ".input"},
        {".function.", "."},
    };
    for (const auto& [from, to] : kWords) {
      for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
        text.replace(at, from.size(), to);
      }
    }
    return text;
  };
  return Status(status.code(), renamed(status.message()), renamed(status.param()), status.reason());
}

Result<ToolCall> tool_use(const Json& block, const std::string& path) {
  TF_RETURN_IF_ERROR(only_members(block, path, {"name", "input"}));
  Json::Object function;
  if (const Json* name = block.find("name")) function.emplace_back("name", *name);
  if (const Json* input = block.find("input")) function.emplace_back("arguments", *input);
  Json::Object call = {{"function", Json::object(std::move(function))}};
  if (const Json* id = block.find("id")) call.emplace_back("id", *id);
  auto parsed = read_tool_call(Json::object(std::move(call)), path);
  if (!parsed.ok()) return in_tool_words(parsed.status());
  return parsed;
}

// One turn of the client's list: user turns may give several messages.
class Turn {
 public:
  Turn(Role role, std::vector<ChatMessage>& out) : out_(out) { message_.role = role; }

  Status add(const Json& block, const std::string& path) {
    TF_ASSIGN_OR_RETURN(const std::string type, type_of(block, path));
    const bool assistant = message_.role == Role::kAssistant;
    if (type == "text") {
      TF_RETURN_IF_ERROR(only_members(block, path, {"text"}));
      TF_ASSIGN_OR_RETURN(std::string text, member_text(block, path, "text"));
      add_text(message_, std::move(text));
      message_.content_is_list = true;
      return ok_status();
    }
    if (type == "thinking" && assistant) {
      TF_RETURN_IF_ERROR(only_members(block, path, {"thinking"}));
      TF_ASSIGN_OR_RETURN(const std::string text, member_text(block, path, "thinking"));
      message_.reasoning = message_.reasoning.value_or("") + text;
      return ok_status();
    }
    if (type == "redacted_thinking" && assistant) return ok_status();  // of another model
    if (type == "tool_use" && assistant) {
      if (message_.tool_calls.size() == kToolCallsMax) {
        return invalid_argument(path + ": too many calls in one turn", path);
      }
      TF_ASSIGN_OR_RETURN(ToolCall call, tool_use(block, path));
      message_.tool_calls.push_back(std::move(call));
      return ok_status();
    }
    if (type == "tool_result" && !assistant) {
      TF_ASSIGN_OR_RETURN(ChatMessage result, tool_result(block, path));
      flush(false);
      out_.push_back(std::move(result));
      any_ = true;
      return ok_status();
    }
    return unsupported_block(type, path);
  }

  void set_text(std::string text) { add_text(message_, std::move(text)); }

  // What is left; a turn of nothing is still a turn.
  void flush(bool last) {
    const Role role = message_.role;
    const bool empty =
        message_.content.empty() && message_.tool_calls.empty() && !message_.reasoning;
    if (!empty || (last && !any_)) {
      out_.push_back(std::move(message_));
      any_ = true;
    }
    message_ = ChatMessage();
    message_.role = role;
  }

 private:
  ChatMessage message_;
  std::vector<ChatMessage>& out_;
  bool any_ = false;
};

Status read_turn(const Json& value, const std::string& path, std::vector<ChatMessage>& out) {
  if (!value.is_object()) return wrong_kind(path, "an object", value);
  TF_ASSIGN_OR_RETURN(const std::string role, member_text(value, path, "role"));
  if (role != "user" && role != "assistant" && role != "system") {
    return invalid_argument(
        path + ".role must be user or assistant, not '" + role.substr(0, 64) + "'", path + ".role");
  }
  TF_RETURN_IF_ERROR(only_members(value, path, {"role", "content"}));
  const Json* content = value.find("content");
  if (content == nullptr) return invalid_argument(path + ".content is missing", path + ".content");
  Turn turn(role == "user"     ? Role::kUser
            : role == "system" ? Role::kSystem
                               : Role::kAssistant,
            out);
  if (content->is_string()) {
    turn.set_text(content->as_string());
  } else if (content->is_array()) {
    const Json::Array& blocks = content->as_array();
    if (blocks.size() > kContentPartsMax) {
      return invalid_argument(
          path + ".content has more than " + std::to_string(kContentPartsMax) + " blocks",
          path + ".content");
    }
    for (size_t j = 0; j < blocks.size(); ++j) {
      TF_RETURN_IF_ERROR(turn.add(blocks[j], item_path(path + ".content", j)));
    }
  } else {
    return wrong_kind(path + ".content", "a string or a list of blocks", *content);
  }
  turn.flush(true);
  return ok_status();
}

}  // namespace

Status read_text_blocks(const Json& value, const std::string& path, ChatMessage& message) {
  if (value.is_string()) {
    add_text(message, value.as_string());
    return ok_status();
  }
  if (!value.is_array()) return wrong_kind(path, "a string or a list of text blocks", value);
  message.content_is_list = true;
  if (value.as_array().size() > kContentPartsMax) {
    return invalid_argument(path + " has more than " + std::to_string(kContentPartsMax) + " blocks",
                            path);
  }
  for (size_t j = 0; j < value.as_array().size(); ++j) {
    const Json& block = value.as_array()[j];
    const std::string where = item_path(path, j);
    TF_ASSIGN_OR_RETURN(const std::string type, type_of(block, where));
    if (type != "text") return unsupported_block(type, where);
    TF_RETURN_IF_ERROR(only_members(block, where, {"text"}));
    TF_ASSIGN_OR_RETURN(std::string text, member_text(block, where, "text"));
    add_text(message, std::move(text));
  }
  return ok_status();
}

Status read_turns(const Json& value, std::vector<ChatMessage>& messages) {
  if (!value.is_array()) return wrong_kind("messages", "a list", value);
  if (value.as_array().empty()) return invalid_argument("messages must not be empty", "messages");
  if (value.as_array().size() > kMessagesMax) {
    return invalid_argument("messages has more than " + std::to_string(kMessagesMax) + " entries",
                            "messages");
  }
  for (size_t i = 0; i < value.as_array().size(); ++i) {
    TF_RETURN_IF_ERROR(read_turn(value.as_array()[i], item_path("messages", i), messages));
  }
  return ok_status();
}

Status read_messages_tools(const Json& value, const ChatDefaults& defaults, ChatCall& call) {
  if (!value.is_array()) return wrong_kind("tools", "a list", value);
  Json::Array functions;
  for (size_t i = 0; i < value.as_array().size(); ++i) {
    const Json& tool = value.as_array()[i];
    const std::string path = item_path("tools", i);
    if (!tool.is_object()) return wrong_kind(path, "an object", tool);
    Json::Object function;
    for (const auto& [name, member] : tool.as_object()) {
      if (name == "type") {
        if (member.is_string() && member.as_string() == "custom") continue;
        return invalid_argument(path + ".type: only custom tools are supported", path + ".type");
      }
      if (name == "name" || name == "description" || name == "strict") {
        function.emplace_back(name, member);
      } else if (name == "input_schema") {
        function.emplace_back("parameters", member);
      } else if (name != "cache_control" && name != "eager_input_streaming" &&
                 name != "input_examples" && name != "defer_loading" && name != "allowed_callers") {
        return invalid_argument("unknown field " + path + "." + name.substr(0, 64),
                                path + "." + name);
      }
    }
    functions.push_back(Json::object(
        {{"type", Json::string("function")}, {"function", Json::object(std::move(function))}}));
  }
  const Status status = read_tools(Json::array(std::move(functions)), defaults, call);
  return status.ok() ? status : in_tool_words(status);
}

Status read_messages_choice(const Json& value, const ChatDefaults& defaults, ChatCall& call) {
  TF_ASSIGN_OR_RETURN(const std::string type, type_of(value, "tool_choice"));
  for (const auto& [name, member] : value.as_object()) {
    const std::string path = "tool_choice." + name;
    if (name == "disable_parallel_tool_use") {
      TF_ASSIGN_OR_RETURN(const bool one, read_bool(member, path));
      call.request.parallel_tool_calls = !one;
    } else if (name != "type" && name != "name") {
      return invalid_argument("unknown field " + path, path);
    }
  }
  if (type == "auto" || type == "none") {
    return read_tool_choice(Json::string(type), defaults, call);
  }
  if (type == "any") return read_tool_choice(Json::string("required"), defaults, call);
  if (type != "tool") {
    return invalid_argument("tool_choice.type must be auto, any, tool or none", "tool_choice.type");
  }
  TF_ASSIGN_OR_RETURN(std::string name, member_text(value, "tool_choice", "name"));
  const Json function = Json::object({{"name", Json::string(std::move(name))}});
  return read_tool_choice(
      Json::object({{"type", Json::string("function")}, {"function", function}}), defaults, call);
}

Status read_output_form(const Json& value, const std::string& path, ConstraintWishes& form) {
  TF_ASSIGN_OR_RETURN(const std::string type, type_of(value, path));
  if (type != "json_schema") {
    return invalid_argument(path + ".type must be json_schema", path + ".type");
  }
  const Json* schema = value.find("schema");
  if (schema == nullptr) return invalid_argument(path + ".schema is missing", path + ".schema");
  Json::Object inner = {{"name", Json::string("output")}, {"schema", *schema}};
  TF_RETURN_IF_ERROR(read_response_format(
      Json::object({{"type", Json::string(type)}, {"json_schema", Json::object(std::move(inner))}}),
      form));
  form.content->param = path + ".schema";
  return ok_status();
}

}  // namespace tensorfold::api
