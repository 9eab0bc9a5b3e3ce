// A streamed chat reply: each function gives the bytes of one server-sent event.
//
// Order: role, deltas (reasoning, then content, then calls), finish with the stats block, usage if
// it was asked for (else it stands in the finish event), [DONE]. An error after the headers is one
// event, then [DONE].
#pragma once

#include <string>

#include "daemon/api/reply_json.h"
#include "engine/base/status.h"

namespace tensorfold::api {

class ChatStream {
 public:
  explicit ChatStream(ReplyInfo info) : info_(std::move(info)) {}

  std::string role() const;
  // Empty if there is nothing to say. `logprobs`: entries that append_logprobs made.
  std::string delta(const OutputDelta& delta, std::string_view logprobs);
  std::string finish(FinishReason reason, const ReplyStats& stats) const;
  std::string usage(const ReplyStats& stats) const;  // empty unless it was asked for

  static std::string error(int http_status, const Status& status);
  static std::string done() { return "data: [DONE]\n\n"; }
  static std::string keepalive() { return ": keepalive\n\n"; }

 private:
  void open(JsonOut& json) const;
  void close(JsonOut& json) const;

  ReplyInfo info_;
  int calls_shown_ = 0;
};

}  // namespace tensorfold::api
