#include "daemon/api/reply_sink.h"

#include <algorithm>
#include <utility>

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

// The engine bounds how many there are (kPromptScoresMax).
void ReplySink::on_prompt_logprobs(std::span<const TokenLogprob> tokens) {
  held_prompt_.insert(held_prompt_.end(), tokens.begin(), tokens.end());
  if (push_held_prompt()) port_.wake();
}

bool ReplySink::push_held_prompt() {
  if (held_prompt_.empty()) return true;
  if (!ring_.has_room(kSpareForFinish)) return false;
  ReplyEvent event;
  event.kind = ReplyEvent::Kind::kPrompt;
  event.extra = std::make_unique<ReplyEvent::Extra>();
  event.extra->prompt = std::exchange(held_prompt_, {});
  return ring_.try_push(std::move(event), kSpareForFinish);
}

void ReplySink::on_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob> logprobs) {
  const bool with_logprobs = logprobs.size() == ids.size();
  if (!push_held()) {
    if (held_ids_.size() + ids.size() > kHeldTokensMax) {
      overflowed_.store(true, std::memory_order_release);
    } else {
      held_ids_.insert(held_ids_.end(), ids.begin(), ids.end());
      held_logprobs_.insert(held_logprobs_.end(), logprobs.begin(), logprobs.end());
    }
    port_.wake();
    return;
  }
  for (size_t at = 0; at < ids.size(); at += kIdsPerEvent) {
    const size_t count = std::min(kIdsPerEvent, ids.size() - at);
    push_tokens(ids.subspan(at, count),
                with_logprobs ? logprobs.subspan(at, count) : std::span<const TokenLogprob>());
  }
  port_.wake();
}

// At most kIdsPerEvent tokens, into the ring or, when it is full, after those that wait already.
void ReplySink::push_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob> logprobs) {
  if (held_ids_.empty()) {
    ReplyEvent event;
    event.kind = ReplyEvent::Kind::kTokens;
    event.count = static_cast<unsigned char>(ids.size());
    std::copy(ids.begin(), ids.end(), event.values.begin());
    if (!logprobs.empty()) {
      event.extra = std::make_unique<ReplyEvent::Extra>();
      event.extra->logprobs.assign(logprobs.begin(), logprobs.end());
    }
    if (ring_.try_push(std::move(event), kSpareForFinish)) return;
  }
  held_ids_.insert(held_ids_.end(), ids.begin(), ids.end());
  held_logprobs_.insert(held_logprobs_.end(), logprobs.begin(), logprobs.end());
}

// True when nothing waits (any more).
bool ReplySink::push_held() {
  if (!push_held_prompt()) return false;
  if (held_ids_.empty()) return true;
  if (!ring_.has_room(kSpareForFinish)) return false;
  ReplyEvent event;
  event.kind = ReplyEvent::Kind::kTokens;
  event.extra = std::make_unique<ReplyEvent::Extra>();
  event.extra->ids = std::exchange(held_ids_, {});
  event.extra->logprobs = std::exchange(held_logprobs_, {});
  return ring_.try_push(std::move(event), kSpareForFinish);
}

void ReplySink::on_finished(const Status& status, FinishReason reason, const ReplyStats& stats) {
  ReplyEvent event;
  event.kind = ReplyEvent::Kind::kFinished;
  event.extra = std::make_unique<ReplyEvent::Extra>();
  event.extra->ids = std::move(held_ids_);
  event.extra->logprobs = std::move(held_logprobs_);
  event.extra->prompt = std::move(held_prompt_);
  event.extra->status = status;
  event.extra->reason = reason;
  event.extra->stats = stats;
  const bool pushed = ring_.try_push(std::move(event));
  TF_CHECK_MSG(pushed, "a slot is kept for the end of a reply");
  port_.wake();
}

}  // namespace tensorfold::api
