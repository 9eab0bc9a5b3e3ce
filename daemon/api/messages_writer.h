// Replies of /v1/messages, whole and streamed.
//
// Order of a stream: message_start, then for each block content_block_start, its deltas and
// content_block_stop, then message_delta and message_stop; ping while nothing comes. Thinking comes
// with an empty signature: it is not encrypted. An error is one event `error`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/api/reply_writer.h"

namespace tensorfold::api {

// `stops`: the stop sequences that were asked for.
std::unique_ptr<ReplyWriter> make_messages_writer(bool stream, std::vector<std::string> stops);

}  // namespace tensorfold::api
