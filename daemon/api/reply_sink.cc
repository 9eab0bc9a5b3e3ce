#include "daemon/api/reply_sink.h"

#include <algorithm>

namespace tensorfold::api {
namespace {

constexpr size_t kSpareForFinish = 1;
constexpr size_t kSpareForTokens = kReplyEventItemsMax / 2;  // progress gives way to tokens

}  // namespace

void ReplySink::on_accepted(RequestId, int prompt_tokens, int cached_tokens) {
  ReplyEvent event;
  event.kind = ReplyEvent::Kind::kAccepted;
  event.values = {prompt_tokens, cached_tokens};
  ring_.try_push(std::move(event), kSpareForFinish);
  port_.wake();
}

void ReplySink::on_progress(int prompt_tokens_done, int prompt_tokens_total) {
  ReplyEvent event;
  event.kind = ReplyEvent::Kind::kProgress;
  event.values = {prompt_tokens_done, prompt_tokens_total};
  if (ring_.try_push(std::move(event), kSpareForTokens)) port_.wake();
}

void ReplySink::on_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob> logprobs) {
  for (size_t at = 0; at < ids.size(); at += kIdsPerEvent) {
    const size_t count = std::min(kIdsPerEvent, ids.size() - at);
    ReplyEvent event;
    event.kind = ReplyEvent::Kind::kTokens;
    event.count = static_cast<unsigned char>(count);
    std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(at), count, event.values.begin());
    if (logprobs.size() == ids.size()) {
      event.extra = std::make_unique<ReplyEvent::Extra>();
      const auto part = logprobs.subspan(at, count);
      event.extra->logprobs.assign(part.begin(), part.end());
    }
    if (!ring_.try_push(std::move(event), kSpareForFinish)) {
      overflowed_.store(true, std::memory_order_release);
      break;
    }
  }
  port_.wake();
}

void ReplySink::on_finished(const Status& status, FinishReason reason, const ReplyStats& stats) {
  ReplyEvent event;
  event.kind = ReplyEvent::Kind::kFinished;
  event.extra = std::make_unique<ReplyEvent::Extra>();
  event.extra->status = status;
  event.extra->reason = reason;
  event.extra->stats = stats;
  const bool pushed = ring_.try_push(std::move(event));
  TF_CHECK_MSG(pushed, "a slot is kept for the end of a reply");
  port_.wake();
}

}  // namespace tensorfold::api
