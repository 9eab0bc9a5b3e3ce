#include "ctl/prompt/prompt_json.h"

#include <string>

namespace tensorfold::ctl {
namespace {

Status wrong_type(const std::string& where, const char* wanted) {
  return invalid_argument(where + ": " + wanted + " expected", where, "content_type");
}

Status missing(const std::string& where) {
  return invalid_argument(where + " is missing", where, "missing_field");
}

bool given(const Json* value) { return value != nullptr && !value->is_null(); }

bool truthy(const Json* value) {
  if (!given(value)) return false;
  if (value->is_bool()) return value->as_bool();
  if (value->is_number()) return value->as_double() != 0;
  if (value->is_string()) return !value->as_string().empty();
  return value->is_array() ? !value->as_array().empty() : !value->as_object().empty();
}

Status read_text(const Json* value, const std::string& where, std::string& out) {
  if (!given(value)) return {};
  if (!value->is_string()) return wrong_type(where, "a text");
  out = value->as_string();
  return {};
}

// The record of an image part, or null when it names no source.
Json image_record(const Json& block, std::string_view type) {
  Json record = Json::object({{"type", Json::string("image")}});
  bool usable = false;
  if (type == "image_url") {
    const Json* url = block.find("image_url");
    if (url != nullptr && url->is_object()) url = url->find("url");
    usable = truthy(url);
    record.set("url", usable ? *url : Json::string(""));
  } else {
    for (const char* key : {"source", "url", "data"}) {
      const Json* value = block.find(key);
      if (value == nullptr) continue;
      usable = usable || truthy(value);
      record.set(key, *value);
    }
  }
  return usable ? record : Json::null();
}

Status read_content(const Json* value, const std::string& where, PromptContent& out);

Status read_block(const Json& block, const std::string& where, PromptBlock& out) {
  if (!block.is_object()) return wrong_type(where, "an object");
  const Json* type = block.find("type");
  out.type = given(type) && type->is_string() ? type->as_string() : "None";
  if (out.type == "text") {
    const Json* text = block.find("text");
    if (text != nullptr && text->is_null()) {
      return invalid_argument(where + ".text is null", where, "null_content");
    }
    return read_text(text, where + ".text", out.text);
  }
  if (out.type == "image" || out.type == "image_url") {
    out.kind = PromptBlock::Kind::kImage;
    out.image = image_record(block, out.type);
    return {};
  }
  if (out.type == "tool_result") {
    out.kind = PromptBlock::Kind::kToolResult;
    if (Status s = read_text(block.find("tool_use_id"), where + ".tool_use_id", out.tool_use_id);
        !s.ok()) {
      return s;
    }
    return read_content(block.find("content"), where + ".content", out.content);
  }
  out.kind = PromptBlock::Kind::kOther;
  return {};
}

Status read_blocks(const Json& list, const std::string& where, std::vector<PromptBlock>& out) {
  if (!list.is_array()) return wrong_type(where, "a list");
  for (size_t i = 0; i < list.as_array().size(); ++i) {
    out.emplace_back();
    const std::string at = where + "[" + std::to_string(i) + "]";
    if (Status s = read_block(list.as_array()[i], at, out.back()); !s.ok()) return s;
  }
  return {};
}

Status read_content(const Json* value, const std::string& where, PromptContent& out) {
  if (value == nullptr) return {};
  if (value->is_null()) {
    out.kind = PromptContent::Kind::kNull;
  } else if (value->is_string()) {
    out = PromptContent::of(value->as_string());
  } else if (value->is_array()) {
    out.kind = PromptContent::Kind::kBlocks;
    return read_blocks(*value, where, out.blocks);
  } else {
    return wrong_type(where, "a text, a list or null");
  }
  return {};
}

Status read_calls(const Json& list, const std::string& where, std::vector<PromptToolCall>& out) {
  if (!list.is_array()) return wrong_type(where, "a list");
  for (size_t i = 0; i < list.as_array().size(); ++i) {
    const Json& item = list.as_array()[i];
    const std::string at = where + "[" + std::to_string(i) + "]";
    const Json* function = item.find("function");
    if (function == nullptr) return missing(at + ".function");
    const Json* name = function->find("name");
    const Json* arguments = function->find("arguments");
    if (name == nullptr) return missing(at + ".function.name");
    if (arguments == nullptr) return missing(at + ".function.arguments");
    PromptToolCall call;
    call.arguments = *arguments;
    if (Status s = read_text(name, at + ".function.name", call.name); !s.ok()) return s;
    const Json* id = item.find("id");
    if (!truthy(id)) id = function->find("id");
    if (Status s = read_text(id, at + ".id", call.id); !s.ok()) return s;
    out.push_back(std::move(call));
  }
  return {};
}

Status read_message(const Json& json, const std::string& where, PromptMessage& out) {
  if (!json.is_object()) return wrong_type(where, "an object");
  const Json* role = json.find("role");
  out.role = given(role) && role->is_string() ? role->as_string() : "None";
  if (Status s = read_content(json.find("content"), where + ".content", out.content); !s.ok()) {
    return s;
  }
  if (const Json* blocks = json.find("content_blocks"); given(blocks)) {
    out.content_blocks.emplace();
    if (Status s = read_blocks(*blocks, where + ".content_blocks", *out.content_blocks); !s.ok()) {
      return s;
    }
  }
  if (const Json* reasoning = json.find("reasoning_content"); given(reasoning)) {
    out.reasoning.emplace();
    if (Status s = read_text(reasoning, where + ".reasoning_content", *out.reasoning); !s.ok()) {
      return s;
    }
  }
  if (const Json* calls = json.find("tool_calls"); given(calls)) {
    if (Status s = read_calls(*calls, where + ".tool_calls", out.tool_calls); !s.ok()) return s;
  }
  if (Status s = read_text(json.find("tool_call_id"), where + ".tool_call_id", out.tool_call_id);
      !s.ok()) {
    return s;
  }
  if (const Json* tools = json.find("tools"); given(tools)) {
    Result<std::vector<Json>> functions = functions_from_json(*tools);
    if (!functions.ok()) return functions.status().with_context(where);
    out.tools = std::move(*functions);
  }
  if (const Json* format = json.find("response_format"); given(format)) {
    out.response_format = *format;
  }
  if (const Json* task = json.find("task"); given(task)) {
    out.task.emplace();
    if (Status s = read_text(task, where + ".task", *out.task); !s.ok()) return s;
  }
  out.wo_eos = truthy(json.find("wo_eos"));
  return {};
}

}  // namespace

Result<std::vector<PromptMessage>> messages_from_json(const Json& list) {
  if (!list.is_array()) return wrong_type("messages", "a list");
  std::vector<PromptMessage> out;
  for (size_t i = 0; i < list.as_array().size(); ++i) {
    out.emplace_back();
    const std::string where = "messages[" + std::to_string(i) + "]";
    if (Status s = read_message(list.as_array()[i], where, out.back()); !s.ok()) return s;
  }
  return out;
}

Result<std::vector<Json>> functions_from_json(const Json& tools) {
  if (!tools.is_array()) return wrong_type("tools", "a list");
  std::vector<Json> out;
  for (size_t i = 0; i < tools.as_array().size(); ++i) {
    const Json* function = tools.as_array()[i].find("function");
    if (function == nullptr) return missing("tools[" + std::to_string(i) + "].function");
    out.push_back(*function);
  }
  return out;
}

}  // namespace tensorfold::ctl
