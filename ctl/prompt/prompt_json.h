// Conversations in the reference encoder's JSON form -> prompt_message.h.
//
// For files of test cases and for bodies that serving refuses (images). Accepts what the reference
// accepts; where it would fail, the error's reason says how:
//   missing_field (KeyError), content_type (TypeError), null_content (TypeError)
#pragma once

#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/text/prompt_message.h"

namespace tensorfold::ctl {

Result<std::vector<PromptMessage>> messages_from_json(const Json& list);

// [{"type": "function", "function": {...}}, ...] -> the function objects.
Result<std::vector<Json>> functions_from_json(const Json& tools);

}  // namespace tensorfold::ctl
