// See the header.
#include "daemon/api/responses_items.h"

#include <utility>

#include "daemon/api/json_read.h"

namespace tensorfold::api {
namespace {

Result<std::string> member_text(const Json& item, const std::string& path, const char* name) {
  const Json* text = item.find(name);
  const std::string where = path + "." + name;
  if (text == nullptr || text->is_null()) return invalid_argument(where + " is missing", where);
  return read_string(*text, where);
}

Status only_members(const Json& item, const std::string& path,
                    std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : item.as_object()) {
    bool found = name == "type" || name == "id" || name == "status";
    for (const std::string_view k : known) found |= k == name;
    if (!found) {
      return invalid_argument("unknown field " + path + "." + name.substr(0, 64),
                              path + "." + name);
    }
  }
  return ok_status();
}

Status add_part(const Json& part, const std::string& path, ChatMessage& message) {
  if (!part.is_object()) return wrong_kind(path, "an object", part);
  TF_ASSIGN_OR_RETURN(const std::string type, member_text(part, path, "type"));
  if (type != "input_text" && type != "output_text" && type != "text") {
    return invalid_argument(
        path + ": content of type '" + type.substr(0, 64) + "' is not supported" +
            (type == "input_image" ? " (this server does not read images yet)" : ""),
        path, "unsupported_content");
  }
  ContentPart out;
  TF_ASSIGN_OR_RETURN(out.text, member_text(part, path, "text"));
  message.content.push_back(std::move(out));
  return ok_status();
}

Status read_content(const Json& value, const std::string& path, ChatMessage& message) {
  if (value.is_string()) {
    ContentPart part;
    part.text = value.as_string();
    message.content.push_back(std::move(part));
    return ok_status();
  }
  if (!value.is_array()) return wrong_kind(path, "a string or a list of parts", value);
  if (value.as_array().size() > kContentPartsMax) {
    return invalid_argument(path + " has more than " + std::to_string(kContentPartsMax) + " parts",
                            path);
  }
  message.content_is_list = true;
  for (size_t j = 0; j < value.as_array().size(); ++j) {
    TF_RETURN_IF_ERROR(add_part(value.as_array()[j], item_path(path, j), message));
  }
  return ok_status();
}

// An error about a nested function, said about the flat one.
Status in_flat_words(const Status& status) {
  const auto renamed = [](std::string text) {
    constexpr std::string_view kFrom = ".function.";
    for (size_t at = text.find(kFrom); at != std::string::npos; at = text.find(kFrom, at)) {
      text.replace(at, kFrom.size(), ".");
    }
    return text;
  };
  return Status(status.code(), renamed(status.message()), renamed(status.param()), status.reason());
}

// The turn of the assistant that items are added to, or a new one.
class Items {
 public:
  explicit Items(std::vector<ChatMessage>& out) : out_(out) {}

  Status add(const Json& item, const std::string& path) {
    if (!item.is_object()) return wrong_kind(path, "an object", item);
    const Json* type = item.find("type");
    const std::string name = type != nullptr && type->is_string() ? type->as_string() : "message";
    if (name == "message") return message(item, path);
    if (name == "function_call") return call(item, path);
    if (name == "function_call_output") return result(item, path);
    if (name == "reasoning") return reasoning(item, path);
    return invalid_argument(path + ": items of type '" + name.substr(0, 64) + "' are not supported",
                            path + ".type", "unsupported_content");
  }

 private:
  ChatMessage& turn(bool fresh) {
    if (fresh || out_.empty() || out_.back().role != Role::kAssistant) {
      out_.emplace_back();
      out_.back().role = Role::kAssistant;
    }
    return out_.back();
  }
  bool at_assistant() const { return !out_.empty() && out_.back().role == Role::kAssistant; }

  Status message(const Json& item, const std::string& path) {
    TF_RETURN_IF_ERROR(only_members(item, path, {"role", "content", "phase"}));
    TF_ASSIGN_OR_RETURN(const std::string role, member_text(item, path, "role"));
    const Json* content = item.find("content");
    if (content == nullptr)
      return invalid_argument(path + ".content is missing", path + ".content");
    if (role == "assistant") {
      // After text or calls of an earlier message another turn begins.
      const bool fresh =
          at_assistant() && (!out_.back().content.empty() || !out_.back().tool_calls.empty());
      return read_content(*content, path + ".content", turn(fresh));
    }
    if (role != "user" && role != "system" && role != "developer") {
      return invalid_argument(path + ".role must be user, assistant, system or developer, not '" +
                                  role.substr(0, 64) + "'",
                              path + ".role");
    }
    out_.emplace_back();
    out_.back().role = role == "user" ? Role::kUser : Role::kSystem;
    return read_content(*content, path + ".content", out_.back());
  }

  Status call(const Json& item, const std::string& path) {
    TF_RETURN_IF_ERROR(only_members(item, path, {"call_id", "name", "arguments", "namespace"}));
    Json::Object function;
    if (const Json* name = item.find("name")) function.emplace_back("name", *name);
    if (const Json* text = item.find("arguments")) function.emplace_back("arguments", *text);
    TF_ASSIGN_OR_RETURN(std::string id, member_text(item, path, "call_id"));
    const Json wrapped = Json::object(
        {{"id", Json::string(std::move(id))}, {"function", Json::object(std::move(function))}});
    auto parsed = read_tool_call(wrapped, path);
    if (!parsed.ok()) return in_flat_words(parsed.status());
    ChatMessage& message = turn(false);
    if (message.tool_calls.size() == kToolCallsMax) {
      return invalid_argument(path + ": too many calls in one turn", path);
    }
    message.tool_calls.push_back(std::move(parsed).value());
    return ok_status();
  }

  Status result(const Json& item, const std::string& path) {
    TF_RETURN_IF_ERROR(only_members(item, path, {"call_id", "output"}));
    ChatMessage message;
    message.role = Role::kTool;
    TF_ASSIGN_OR_RETURN(message.tool_call_id, member_text(item, path, "call_id"));
    const Json* output = item.find("output");
    if (output == nullptr) return invalid_argument(path + ".output is missing", path + ".output");
    TF_RETURN_IF_ERROR(read_content(*output, path + ".output", message));
    out_.push_back(std::move(message));
    return ok_status();
  }

  // The text of reasoning; a summary stands in for it when there is no text.
  Status reasoning(const Json& item, const std::string& path) {
    TF_RETURN_IF_ERROR(only_members(item, path, {"summary", "content", "encrypted_content"}));
    std::string text;
    for (const char* name : {"content", "summary"}) {
      const Json* parts = item.find(name);
      if (parts == nullptr || parts->is_null() || !text.empty()) continue;
      if (!parts->is_array()) return wrong_kind(path + "." + name, "a list", *parts);
      for (size_t j = 0; j < parts->as_array().size(); ++j) {
        const std::string where = item_path(path + "." + name, j);
        TF_ASSIGN_OR_RETURN(const std::string part,
                            member_text(parts->as_array()[j], where, "text"));
        text += part;
      }
    }
    const bool fresh =
        at_assistant() && (!out_.back().content.empty() || !out_.back().tool_calls.empty());
    ChatMessage& message = turn(fresh);
    message.reasoning = message.reasoning.value_or("") + text;
    return ok_status();
  }

  std::vector<ChatMessage>& out_;
};

Json nested_function(const Json& flat, bool with_all) {
  Json::Object function;
  for (const auto& [name, member] : flat.as_object()) {
    const bool wanted =
        name == "name" ||
        (with_all && (name == "description" || name == "parameters" || name == "strict"));
    if (wanted && !member.is_null()) function.emplace_back(name, member);
  }
  return Json::object(
      {{"type", Json::string("function")}, {"function", Json::object(std::move(function))}});
}

}  // namespace

Status read_input(const Json& value, const ChatDefaults&, ChatCall& call) {
  auto& messages = call.request.prompt.messages;
  if (value.is_string()) {
    ChatMessage message;
    message.content.push_back({ContentPart::Kind::kText, value.as_string(), {}});
    messages.push_back(std::move(message));
    return ok_status();
  }
  if (!value.is_array()) return wrong_kind("input", "a string or a list of items", value);
  if (value.as_array().size() > kInputItemsMax) {
    return invalid_argument("input has more than " + std::to_string(kInputItemsMax) + " items",
                            "input");
  }
  Items items(messages);
  for (size_t i = 0; i < value.as_array().size(); ++i) {
    TF_RETURN_IF_ERROR(items.add(value.as_array()[i], item_path("input", i)));
  }
  return ok_status();
}

Status read_responses_tools(const Json& value, const ChatDefaults& defaults, ChatCall& call) {
  if (!value.is_array()) return wrong_kind("tools", "a list", value);
  Json::Array functions;
  for (size_t i = 0; i < value.as_array().size(); ++i) {
    const Json& tool = value.as_array()[i];
    const std::string path = item_path("tools", i);
    if (!tool.is_object()) return wrong_kind(path, "an object", tool);
    const Json* type = tool.find("type");
    if (type == nullptr || !type->is_string() || type->as_string() != "function") {
      return invalid_argument(path + ".type: only functions are supported", path + ".type");
    }
    functions.push_back(nested_function(tool, true));
  }
  const Status status = read_tools(Json::array(std::move(functions)), defaults, call);
  return status.ok() ? status : in_flat_words(status);
}

Status read_responses_choice(const Json& value, const ChatDefaults& defaults, ChatCall& call) {
  if (!value.is_object()) return read_tool_choice(value, defaults, call);
  const Json* type = value.find("type");
  const std::string name = type != nullptr && type->is_string() ? type->as_string() : "";
  if (name == "function") {
    const Status status = read_tool_choice(nested_function(value, false), defaults, call);
    return status.ok() ? status : in_flat_words(status);
  }
  if (name != "allowed_tools") {
    return invalid_argument("tool_choice.type must be function or allowed_tools",
                            "tool_choice.type");
  }
  Json::Object inner;
  if (const Json* mode = value.find("mode")) inner.emplace_back("mode", *mode);
  Json::Array tools;
  const Json* list = value.find("tools");
  if (list == nullptr || !list->is_array()) {
    return invalid_argument("tool_choice.tools must be a list", "tool_choice.tools");
  }
  for (size_t i = 0; i < list->as_array().size(); ++i) {
    const Json& tool = list->as_array()[i];
    if (!tool.is_object()) return wrong_kind(item_path("tool_choice.tools", i), "an object", tool);
    tools.push_back(nested_function(tool, false));
  }
  inner.emplace_back("tools", Json::array(std::move(tools)));
  return read_tool_choice(Json::object({{"type", Json::string(name)},
                                        {"allowed_tools", Json::object(std::move(inner))}}),
                          defaults, call);
}

}  // namespace tensorfold::api
