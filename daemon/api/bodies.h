// The bodies of every POST route: for each a table of its fields and the reader that makes an order
// or a prompt of it. Pure; they run on the loop or on a worker.
#pragma once

#include <span>
#include <string_view>

#include "daemon/api/reply_order.h"

namespace tensorfold::api {

// completion_request.cc
std::span<const ChatField> completion_fields();
Result<ReplyOrder> read_completion_order(std::string_view body, const ChatDefaults& defaults);

// messages_request.cc: also what count_tokens reads
std::span<const ChatField> messages_fields();
Result<ReplyOrder> read_messages_order(std::string_view body, const ChatDefaults& defaults);
Result<Prompt> read_count_body(std::string_view body, const ChatDefaults& defaults,
                               std::string* model);

// responses_request.cc
std::span<const ChatField> responses_fields();
Result<ReplyOrder> read_responses_order(std::string_view body, const ChatDefaults& defaults);

// token_routes.cc
std::span<const ChatField> tokenize_fields();
std::span<const ChatField> detokenize_fields();

}  // namespace tensorfold::api
