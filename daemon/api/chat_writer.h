// Chat replies, whole and streamed.
//
// Order of a stream: a role for each choice, deltas (reasoning, then content, then calls), each
// choice's finish with its stats block, usage if it was asked for (else it stands in the last
// finish), [DONE]. An error after the headers is one event, then [DONE].
#pragma once

#include <memory>

#include "daemon/api/reply_writer.h"

namespace tensorfold::api {

struct ChatLook {
  int choices = 1;
  bool include_usage = false;
  bool logprobs = false;
  bool token_ids = false;    // the ids of the reply in the stats block
  int prompt_logprobs = -1;  // alternatives of the prompt's tokens; -1: none at all; not streamed
};

std::unique_ptr<ReplyWriter> make_chat_writer(bool stream, const ChatLook& look);

// What chat and completions share: "data: ...\n\n".
std::string sse_data(std::string_view json);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
void append_keepalive(int done, int total, std::string& out);

}  // namespace tensorfold::api
