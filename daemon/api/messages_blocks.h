// Turns, blocks and tools of the Anthropic API -> the conversation that a chat body gives.
//
// Pure. A tool_result becomes a tool's message where it stands; text around it stays a user's; the
// model's encoder puts them into one turn.
#pragma once

#include <string>
#include <vector>

#include "daemon/api/chat_request.h"

namespace tensorfold::api {

Status read_turns(const Json& value, std::vector<ChatMessage>& messages);
// A text or a list of text blocks.
Status read_text_blocks(const Json& value, const std::string& path, ChatMessage& message);
Status read_messages_tools(const Json& value, const ChatDefaults& defaults, ChatCall& call);
Status read_messages_choice(const Json& value, const ChatDefaults& defaults, ChatCall& call);
// {"type": "json_schema", "schema": ...} as response_format would say it.
Status read_output_form(const Json& value, const std::string& path, ConstraintWishes& form);

}  // namespace tensorfold::api
