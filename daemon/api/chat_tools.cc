// tools, tool_choice and the calls that assistant messages carry.
#include <algorithm>
#include <set>

#include "daemon/api/chat_request.h"
#include "daemon/api/json_read.h"

namespace tensorfold::api {
namespace {

// Names go into the prompt unescaped, between quotes.
bool is_function_name(std::string_view name) {
  return !name.empty() && name.size() <= kFunctionNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '.';
         });
}

Status check_name(const Json* name, const std::string& path) {
  if (name == nullptr) return invalid_argument(path + " is missing", path);
  if (!name->is_string()) return wrong_kind(path, "a string", *name);
  if (!is_function_name(name->as_string())) {
    return invalid_argument(path + " must be 1.." + std::to_string(kFunctionNameBytesMax) +
                                " letters, digits, '_', '-' or '.'",
                            path);
  }
  return ok_status();
}

// The "function" object of {"type": "function", "function": {...}}, or an error.
Result<const Json*> function_of(const Json& value, const std::string& path) {
  if (!value.is_object()) return wrong_kind(path, "an object", value);
  const Json* type = value.find("type");
  if (type != nullptr && !(type->is_string() && type->as_string() == "function")) {
    return invalid_argument(path + ".type must be \"function\"", path + ".type");
  }
  const Json* function = value.find("function");
  if (function == nullptr || !function->is_object()) {
    return invalid_argument(path + ".function must be an object", path + ".function");
  }
  return function;
}

Status check_function(const Json& function, const std::string& path) {
  TF_RETURN_IF_ERROR(check_name(function.find("name"), path + ".name"));
  const Json* description = function.find("description");
  if (description != nullptr && !description->is_null() && !description->is_string()) {
    return wrong_kind(path + ".description", "a string", *description);
  }
  const Json* parameters = function.find("parameters");
  if (parameters != nullptr && !parameters->is_null() && !parameters->is_object()) {
    return wrong_kind(path + ".parameters", "an object", *parameters);
  }
  const Json* strict = function.find("strict");
  if (strict == nullptr || strict->is_null()) return ok_status();
  return read_bool(*strict, path + ".strict").status();
}

}  // namespace

Status read_tools(const Json& value, const ChatDefaults&, ChatCall& call) {
  if (!value.is_array()) return wrong_kind("tools", "a list", value);
  const Json::Array& tools = value.as_array();
  if (tools.size() > kToolsMax) {
    return invalid_argument("tools has more than " + std::to_string(kToolsMax) + " entries",
                            "tools");
  }
  std::set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = item_path("tools", i);
    TF_ASSIGN_OR_RETURN(const Json* function, function_of(tools[i], path));
    TF_RETURN_IF_ERROR(check_function(*function, path + ".function"));
    const std::string& name = function->find("name")->as_string();
    if (!names.insert(name).second) {
      return invalid_argument(path + ".function.name: '" + name + "' is there twice",
                              path + ".function.name");
    }
    call.request.prompt.tools.push_back(*function);
    grammar::ToolSpec tool{name, {}, false};
    if (const Json* parameters = function->find("parameters")) tool.parameters = *parameters;
    const Json* strict = function->find("strict");
    tool.strict = strict != nullptr && strict->is_bool() && strict->as_bool();
    call.form.tools.push_back(std::move(tool));
  }
  call.tools_given = !tools.empty();
  return ok_status();
}

Status read_tool_choice(const Json& value, const ChatDefaults&, ChatCall& call) {
  if (value.is_string() && value.as_string() == "none") {
    call.tool_choice = ToolChoice::kNone;
    return ok_status();
  }
  return read_forced_choice(value, call.form);
}

Result<ToolCall> read_tool_call(const Json& value, const std::string& path) {
  TF_ASSIGN_OR_RETURN(const Json* function, function_of(value, path));
  ToolCall call;
  if (const Json* id = value.find("id"); id != nullptr && !id->is_null()) {
    TF_ASSIGN_OR_RETURN(call.id, read_string(*id, path + ".id"));
  }
  TF_RETURN_IF_ERROR(check_name(function->find("name"), path + ".function.name"));
  call.name = function->find("name")->as_string();
  const Json* arguments = function->find("arguments");
  if (arguments == nullptr || arguments->is_null()) {
    call.arguments = Json::object({});
  } else if (arguments->is_string() || arguments->is_object()) {
    call.arguments = *arguments;
  } else {
    return wrong_kind(path + ".function.arguments", "a string or an object", *arguments);
  }
  return call;
}

}  // namespace tensorfold::api
