// A whole chat reply: collects deltas, then renders one JSON object.
#pragma once

#include <string>
#include <vector>

#include "daemon/api/reply_json.h"

namespace tensorfold::api {

class ChatReply {
 public:
  void add(const OutputDelta& delta);
  void add_logprobs(std::string_view entries);
  std::string render(const ReplyInfo& info, FinishReason reason, const ReplyStats& stats) const;

 private:
  struct Call {
    std::string id, name, arguments;
  };
  std::string reasoning_, content_, logprobs_;
  std::vector<Call> calls_;
};

}  // namespace tensorfold::api
