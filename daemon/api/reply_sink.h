// RequestSink of one reply: what the engine says goes into a ring and wakes the loop.
//
// Engine side: never blocks. If the loop falls so far behind that the ring is full, tokens are kept
// on the engine's side and go into one larger event as soon as there is room; a reply's end takes
// along what is left. Past kHeldTokensMax the reply (and only it) ends with an error.
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
inline constexpr size_t kIdsPerEvent = 8;            // tokens in an event itself
inline constexpr size_t kHeldTokensMax = 1 << 20;    // of one reply, kept while the ring is full

struct ReplyEvent {
  enum class Kind : unsigned char { kNone, kAccepted, kProgress, kPrompt, kTokens, kFinished };
  struct Extra {
    std::vector<TokenId> ids;  // of kTokens and kFinished: tokens that waited, before the event's
    std::vector<TokenLogprob> logprobs;
    std::vector<TokenLogprob> prompt;  // of kPrompt and kFinished
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
  void on_prompt_logprobs(std::span<const TokenLogprob> tokens) override;
  void on_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob> logprobs) override;
  void on_finished(const Status& status, FinishReason reason, const ReplyStats& stats) override;

  // Loop side.
  std::optional<ReplyEvent> pop() { return ring_.try_pop(); }
  bool overflowed() const { return overflowed_.load(std::memory_order_acquire); }

 private:
  void push_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob> logprobs);
  bool push_held();
  bool push_held_prompt();

  LoopPort& port_;
  EventRing<ReplyEvent> ring_;
  // The producer's: what found no room yet.
  std::vector<TokenId> held_ids_;
  std::vector<TokenLogprob> held_logprobs_;
  std::vector<TokenLogprob> held_prompt_;
  std::atomic<bool> overflowed_{false};
};

}  // namespace tensorfold::api
