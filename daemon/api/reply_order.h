// A body of any API, understood: the requests to make of the engine and how the reply is written.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/api/chat_request.h"
#include "daemon/api/dialect.h"
#include "daemon/api/reply_writer.h"

namespace tensorfold::api {

inline constexpr int kReplyChoicesMax = 128;  // n times the prompts of a completion

struct ReplyOrder {
  Dialect dialect = Dialect::kChat;
  std::vector<Request> prompts;  // at least one; each is answered `n` times
  int n = 1;
  std::string model;  // as asked for; empty if the client named none
  bool stream = false;
  bool progress = false;  // prompt progress was asked for
  bool seed_given = false;
  bool tools_given = false;   // also when tool_choice "none" took them out of the prompt
  bool parse_calls = false;   // tools were given, or earlier turns hold calls
  bool hide_calls = false;    // calls that come all the same are not shown
  bool prefill_only = false;  // max_tokens 0: no token is made
  std::string previous;       // previous_response_id
  std::unique_ptr<ReplyWriter> writer;
};

// Pure: runs on the loop or on a worker.
using ReadBody = Result<ReplyOrder> (*)(std::string_view body, const ChatDefaults& defaults);

Result<ReplyOrder> read_chat_order(std::string_view body, const ChatDefaults& defaults);

// What becomes of calls, from the conversation as it stands: whether they are looked for, and
// whether the model may begin one.
void settle_calls(ReplyOrder& order);

// What a chat call and the APIs that are built on one have in common.
ReplyOrder order_of(ChatCall call, Dialect dialect);

}  // namespace tensorfold::api
