// The fields of a request that ask for a form of the reply -> one grammar::ConstraintSpec.
//
// Every spelling ends in the same place: response_format, structured_outputs, guided_json and its
// kin, tools with tool_choice. Pure; runs where parse_chat runs. What is asked for twice in
// different ways is a 400; whether a form can be enforced is found out when it is compiled, before
// any header is sent.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/engine.h"

namespace tensorfold::api {

inline constexpr size_t kFormTextBytesMax = size_t{4} << 20;  // a schema, pattern or grammar

// What the request said about the reply's form, before it is settled.
struct ConstraintWishes {
  std::optional<grammar::ConstraintSpec> content;  // its form, whatever field asked for it
  std::optional<Json> shown;                       // that form as the prompt may state it
  bool text = false;                               // response_format {"type": "text"}
  std::optional<bool> any_whitespace;              // false: compact
  std::vector<grammar::ToolSpec> tools;
  std::optional<grammar::ToolChoice> choice;
  std::string named;
  std::vector<std::string> allowed;  // tool_choice allowed_tools: these and no others
};

Status read_response_format(const Json& value, ConstraintWishes& wishes);
Status read_structured_outputs(const Json& value, ConstraintWishes& wishes);
// guided_json, guided_regex, guided_choice, guided_grammar, guided_whitespace_pattern.
Status read_guided(const std::string& field, const Json& value, ConstraintWishes& wishes);
// "required", {"type": "function", ...}, {"type": "allowed_tools", ...}; "auto" is nothing to say.
Status read_forced_choice(const Json& value, ConstraintWishes& wishes);

// The form that is written into the prompt, if it is one that the model's encoder can write: a JSON
// schema or any object. `asked`: schema_in_prompt; asking for it with another form is an error.
Result<std::optional<Json>> form_for_prompt(const ConstraintWishes& wishes,
                                            std::optional<bool> asked, bool by_default);

// Once every field was read: the constraint of the request, null when the reply is free.
// `parallel`: more than one call may come. `ends_freely`: the reply has no end of its own
// (ignore_eos), so the form of calls that may come is not enforced.
Result<std::shared_ptr<const grammar::ConstraintSpec>> settle_constraint(ConstraintWishes wishes,
                                                                         bool parallel,
                                                                         bool ends_freely);

}  // namespace tensorfold::api
