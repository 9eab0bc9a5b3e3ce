// Readers of the fields that constrain a reply. See the header.
#include "daemon/api/constraint_fields.h"

#include <algorithm>

#include "daemon/api/json_read.h"

namespace tensorfold::api {
namespace {

using grammar::ConstraintKind;
using grammar::ConstraintSpec;

Status set_content(ConstraintSpec spec, ConstraintWishes& wishes) {
  if (wishes.content) {
    return invalid_argument(
        spec.param + ": the reply's form is already given by " + wishes.content->param, spec.param);
  }
  wishes.content = std::move(spec);
  return ok_status();
}

Result<std::string> read_form_text(const Json& value, const std::string& path) {
  TF_ASSIGN_OR_RETURN(std::string text, read_string(value, path));
  if (!text.empty() && text.size() <= kFormTextBytesMax) return text;
  return invalid_argument(path + " must be 1.." + std::to_string(kFormTextBytesMax) + " bytes",
                          path, text.empty() ? "" : "schema_too_complex");
}

// A schema as an object, a boolean, or (as some clients send it) the text of one.
Status set_schema(const Json& value, const std::string& path, bool strict,
                  ConstraintWishes& wishes) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kJsonSchema;
  spec.param = path;
  spec.strict = strict;
  if (value.is_string()) {
    TF_ASSIGN_OR_RETURN(spec.text, read_form_text(value, path));
    Result<Json> parsed = parse_json(spec.text);
    if (!parsed.ok())
      return invalid_argument(path + " is not JSON: " + parsed.status().message(), path);
    wishes.shown = std::move(parsed).value();
  } else if (value.is_object() || value.is_bool()) {
    spec.text = dump_json_compact(value);
    wishes.shown = value;
  } else {
    return wrong_kind(path, "a JSON schema", value);
  }
  return set_content(std::move(spec), wishes);
}

Status set_text(ConstraintKind kind, const Json& value, const std::string& path,
                ConstraintWishes& wishes) {
  ConstraintSpec spec;
  spec.kind = kind;
  spec.param = path;
  TF_ASSIGN_OR_RETURN(spec.text, read_form_text(value, path));
  return set_content(std::move(spec), wishes);
}

Status set_choices(const Json& value, const std::string& path, ConstraintWishes& wishes) {
  if (!value.is_array()) return wrong_kind(path, "a list of strings", value);
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kChoice;
  spec.param = path;
  const Json::Array& list = value.as_array();
  if (list.empty() || list.size() > grammar::kChoicesMax) {
    return invalid_argument(
        path + " must have 1.." + std::to_string(grammar::kChoicesMax) + " strings", path);
  }
  for (size_t i = 0; i < list.size(); ++i) {
    TF_ASSIGN_OR_RETURN(std::string text, read_string(list[i], item_path(path, i)));
    if (text.empty())
      return invalid_argument(item_path(path, i) + " must not be empty", item_path(path, i));
    spec.choices.push_back(std::move(text));
  }
  return set_content(std::move(spec), wishes);
}

Status set_object(const std::string& path, ConstraintWishes& wishes) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kJsonObject;
  spec.param = path;
  wishes.shown = Json::object({{"type", Json::string("json_object")}});
  return set_content(std::move(spec), wishes);
}

// {"name", "description", "schema", "strict"}
Status read_json_schema(const Json& value, const std::string& path, ConstraintWishes& wishes) {
  if (!value.is_object()) return wrong_kind(path, "an object", value);
  const Json* schema = nullptr;
  bool strict = false;
  for (const auto& [name, member] : value.as_object()) {
    const std::string at = path + "." + name.substr(0, 64);
    if (member.is_null()) continue;
    if (name == "schema") {
      schema = &member;
    } else if (name == "strict") {
      TF_ASSIGN_OR_RETURN(strict, read_bool(member, at));
    } else if (name == "name" || name == "description") {
      TF_RETURN_IF_ERROR(read_string(member, at).status());
    } else {
      return invalid_argument("unknown field " + at, at);
    }
  }
  if (schema == nullptr) return invalid_argument(path + ".schema is missing", path + ".schema");
  return set_schema(*schema, path + ".schema", strict, wishes);
}

Result<std::string> named_function(const Json& value, const std::string& path) {
  const Json* function = value.find("function");
  const Json* name = function != nullptr ? function->find("name") : value.find("name");
  if (name == nullptr || !name->is_string())
    return invalid_argument(path + ": the name of a function expected", path);
  return name->as_string();
}

Status read_allowed_tools(const Json& value, ConstraintWishes& wishes) {
  const Json* inner = value.find("allowed_tools");
  const Json& body = inner != nullptr ? *inner : value;
  const Json* mode = body.find("mode");
  const Json* tools = body.find("tools");
  if (tools == nullptr || !tools->is_array() || tools->as_array().empty())
    return invalid_argument("tool_choice.allowed_tools.tools must be a list of tools",
                            "tool_choice");
  for (const Json& tool : tools->as_array()) {
    TF_ASSIGN_OR_RETURN(std::string name, named_function(tool, "tool_choice.allowed_tools.tools"));
    wishes.allowed.push_back(std::move(name));
  }
  wishes.choice = grammar::ToolChoice::kAuto;
  if (mode == nullptr || (mode->is_string() && mode->as_string() == "auto")) return ok_status();
  if (!mode->is_string() || mode->as_string() != "required")
    return invalid_argument("tool_choice.allowed_tools.mode must be auto or required",
                            "tool_choice");
  wishes.choice = grammar::ToolChoice::kRequired;
  return ok_status();
}

// The tools that may be called, and that the named ones are among them.
Status settle_tools(ConstraintWishes& wishes) {
  const auto has = [&](const std::string& name) {
    return std::any_of(wishes.tools.begin(), wishes.tools.end(),
                       [&](const grammar::ToolSpec& t) { return t.name == name; });
  };
  const bool forced = wishes.choice && *wishes.choice != grammar::ToolChoice::kAuto;
  if (forced && wishes.tools.empty())
    return invalid_argument("tool_choice asks for a call, but there are no tools", "tool_choice");
  if (!wishes.named.empty() && !has(wishes.named)) {
    return invalid_argument(
        "tool_choice names \"" + wishes.named.substr(0, 128) + "\", which is not among tools",
        "tool_choice");
  }
  for (const std::string& name : wishes.allowed) {
    if (!has(name)) {
      return invalid_argument(
          "tool_choice allows \"" + name.substr(0, 128) + "\", which is not among tools",
          "tool_choice");
    }
  }
  if (!wishes.allowed.empty()) {
    std::erase_if(wishes.tools, [&](const grammar::ToolSpec& t) {
      return std::find(wishes.allowed.begin(), wishes.allowed.end(), t.name) ==
             wishes.allowed.end();
    });
  }
  return ok_status();
}

}  // namespace

Status read_response_format(const Json& value, ConstraintWishes& wishes) {
  const std::string path = "response_format";
  const Json* type = value.find("type");
  if (type == nullptr || !type->is_string())
    return invalid_argument(path + " must be an object with a type", path);
  const std::string& kind = type->as_string();
  const auto part = [&](const char* name) -> const Json* {
    const Json* member = value.find(name);
    return member == nullptr || member->is_null() ? nullptr : member;
  };
  if (kind == "text") {
    wishes.text = true;
    return ok_status();
  }
  if (kind == "json_object") {
    const Json* schema = part("schema");
    if (schema == nullptr) return set_object(path, wishes);
    return set_schema(*schema, path + ".schema", false, wishes);
  }
  if (kind == "json_schema") {
    const Json* body = part("json_schema");
    if (body != nullptr) return read_json_schema(*body, path + ".json_schema", wishes);
    const Json* schema = part("schema");
    if (schema != nullptr) return set_schema(*schema, path + ".schema", false, wishes);
    return invalid_argument(path + ".json_schema is missing", path + ".json_schema");
  }
  for (const auto& [name, form] :
       {std::pair<const char*, ConstraintKind>{"regex", ConstraintKind::kRegex},
        {"grammar", ConstraintKind::kEbnf}}) {
    if (kind != name) continue;
    if (const Json* text = part(name)) return set_text(form, *text, path + "." + name, wishes);
    return invalid_argument(path + "." + name + " is missing", path + "." + name);
  }
  return invalid_argument(path + ".type must be text, json_object, json_schema, regex or grammar",
                          path + ".type");
}

Status read_structured_outputs(const Json& value, ConstraintWishes& wishes) {
  if (!value.is_object()) return wrong_kind("structured_outputs", "an object", value);
  for (const auto& [name, member] : value.as_object()) {
    if (member.is_null()) continue;
    const std::string path = "structured_outputs." + name.substr(0, 64);
    if (name == "json") {
      TF_RETURN_IF_ERROR(set_schema(member, path, false, wishes));
    } else if (name == "json_object") {
      TF_ASSIGN_OR_RETURN(const bool wanted, read_bool(member, path));
      if (wanted) TF_RETURN_IF_ERROR(set_object(path, wishes));
    } else if (name == "regex") {
      TF_RETURN_IF_ERROR(set_text(ConstraintKind::kRegex, member, path, wishes));
    } else if (name == "grammar") {
      TF_RETURN_IF_ERROR(set_text(ConstraintKind::kEbnf, member, path, wishes));
    } else if (name == "choice") {
      TF_RETURN_IF_ERROR(set_choices(member, path, wishes));
    } else if (name == "disable_any_whitespace") {
      TF_ASSIGN_OR_RETURN(const bool compact, read_bool(member, path));
      wishes.any_whitespace = !compact;
    } else if (name != "disable_fallback") {
      return invalid_argument(path + " is not supported", path);
    }
  }
  return ok_status();
}

Status read_guided(const std::string& field, const Json& value, ConstraintWishes& wishes) {
  if (field == "guided_json") return set_schema(value, field, false, wishes);
  if (field == "guided_regex") return set_text(ConstraintKind::kRegex, value, field, wishes);
  if (field == "guided_grammar") return set_text(ConstraintKind::kEbnf, value, field, wishes);
  return set_choices(value, field, wishes);
}

Status read_forced_choice(const Json& value, ConstraintWishes& wishes) {
  if (value.is_string()) {
    const std::string& word = value.as_string();
    if (word == "auto") return ok_status();
    if (word == "required" || word == "any") {
      wishes.choice = grammar::ToolChoice::kRequired;
      return ok_status();
    }
  } else if (value.is_object()) {
    const Json* type = value.find("type");
    if (type != nullptr && type->is_string() && type->as_string() == "allowed_tools")
      return read_allowed_tools(value, wishes);
    if (type != nullptr && type->is_string() && type->as_string() == "function") {
      TF_ASSIGN_OR_RETURN(wishes.named, named_function(value, "tool_choice"));
      wishes.choice = grammar::ToolChoice::kNamed;
      return ok_status();
    }
  }
  return invalid_argument(
      "tool_choice must be none, auto, required, or an object that names a function",
      "tool_choice");
}

Result<std::optional<Json>> form_for_prompt(const ConstraintWishes& wishes,
                                            std::optional<bool> asked, bool by_default) {
  if (!asked.value_or(by_default)) return std::optional<Json>();
  if (asked && !wishes.shown) {
    return invalid_argument("schema_in_prompt: there is no JSON form to write into the prompt",
                            "schema_in_prompt");
  }
  return wishes.shown;
}

Result<std::shared_ptr<const grammar::ConstraintSpec>> settle_constraint(ConstraintWishes wishes,
                                                                         bool parallel,
                                                                         bool ends_freely) {
  using Spec = std::shared_ptr<const ConstraintSpec>;
  TF_RETURN_IF_ERROR(settle_tools(wishes));
  const auto choice = wishes.choice.value_or(grammar::ToolChoice::kAuto);
  const bool forced = choice != grammar::ToolChoice::kAuto;
  if (wishes.text && wishes.content)
    return invalid_argument(
        "response_format text and " + wishes.content->param + " exclude each other",
        wishes.content->param);
  if (!wishes.content && !forced && (wishes.tools.empty() || ends_freely)) return Spec();
  auto spec = std::make_shared<ConstraintSpec>();
  if (wishes.content) *spec = std::move(*wishes.content);
  if (wishes.any_whitespace && !*wishes.any_whitespace)
    spec->whitespace = grammar::Whitespace::kCompact;
  spec->tools = std::move(wishes.tools);
  spec->tool_choice = choice;
  spec->named = std::move(wishes.named);
  spec->parallel = parallel;
  return Spec(std::move(spec));
}

}  // namespace tensorfold::api
