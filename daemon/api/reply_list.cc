// What is in progress, for the operator (daemon/api/reply_service.h).
#include "daemon/api/active_reply.h"
#include "daemon/api/reply_service.h"

namespace tensorfold::api {
namespace {

std::string_view dialect_name(Dialect dialect) {
  switch (dialect) {
    case Dialect::kChat:
      return "chat";
    case Dialect::kCompletions:
      return "completions";
    case Dialect::kMessages:
      return "messages";
    case Dialect::kResponses:
      break;
  }
  return "responses";
}

std::string_view state_of(const ActiveReply& reply) {
  if (!reply.accepted) return "waiting";
  return reply.first_token_us == 0 ? "prefill" : "decode";
}

}  // namespace

std::vector<ActiveInfo> ReplyService::list() const {
  std::vector<ActiveInfo> out;
  const int64_t now_us = clock_.monotonic_us();
  for (const auto& reply : active_) {
    if (reply->over()) continue;
    ActiveInfo info;
    info.id = reply->info.id;
    info.label = reply->key.label;
    info.dialect = dialect_name(reply->order.dialect);
    info.state = state_of(*reply);
    info.stream = reply->order.stream;
    info.prompt_tokens = reply->info.prompt_tokens;
    info.prompt_done = reply->first_token_us != 0 ? info.prompt_tokens : reply->prompt_done;
    info.reply_tokens = reply->reply_tokens;
    info.age_us = now_us - reply->started_us;
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace tensorfold::api
