// RequestSink of one reply: what the engine says goes into a ring and wakes the loop.
//
// Engine side: never blocks. If the loop falls so far behind that the ring is full, tokens cannot
// be kept: `overflowed` is set and the loop ends this reply (and only this one) with an error.
// on_finished always finds room.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/api/event_ring.h"
#include "daemon/api/loop_port.h"
#include "engine/engine.h"

namespace tensorfold::api {

inline constexpr size_t kReplyEventItemsMax = 2048;  // events of one reply that wait for the loop
inline constexpr size_t kIdsPerEvent = 8;            // tokens of one event

struct ReplyEvent {
  enum class Kind : unsigned char { kNone, kAccepted, kProgress, kTokens, kFinished };
  struct Extra {
    std::vector<TokenLogprob> logprobs;
    Status status;
    FinishReason reason = FinishReason::kStop;
    ReplyStats stats;
  };
  Kind kind = Kind::kNone;
  unsigned char count = 0;
  // kTokens: ids; kAccepted: prompt, cached; kProgress: done, total.
  std::array<int32_t, kIdsPerEvent> values{};
  std::unique_ptr<Extra> extra;
};

class ReplySink final : public RequestSink {
 public:
  explicit ReplySink(LoopPort& port) : port_(port), ring_(kReplyEventItemsMax) {}

  void on_accepted(RequestId id, int prompt_tokens, int cached_tokens) override;
  void on_progress(int prompt_tokens_done, int prompt_tokens_total) override;
  void on_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob> logprobs) override;
  void on_finished(const Status& status, FinishReason reason, const ReplyStats& stats) override;

  // Loop side.
  std::optional<ReplyEvent> pop() { return ring_.try_pop(); }
  bool overflowed() const { return overflowed_.load(std::memory_order_acquire); }

 private:
  LoopPort& port_;
  EventRing<ReplyEvent> ring_;
  std::atomic<bool> overflowed_{false};
};

}  // namespace tensorfold::api
