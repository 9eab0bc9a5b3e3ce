// Items and tools of the Responses API -> the conversation that a chat body gives. Pure.
//
// Reasoning, an assistant's message and its calls are items of their own there; what follows one
// another becomes one turn here.
#pragma once

#include <string>
#include <vector>

#include "daemon/api/chat_request.h"

namespace tensorfold::api {

inline constexpr size_t kInputItemsMax = 16384;  // of one request

Status read_input(const Json& value, const ChatDefaults& defaults, ChatCall& call);
Status read_responses_tools(const Json& value, const ChatDefaults& defaults, ChatCall& call);
Status read_responses_choice(const Json& value, const ChatDefaults& defaults, ChatCall& call);

}  // namespace tensorfold::api
