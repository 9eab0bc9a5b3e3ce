// The canary (engine/health_watch.h): its prompt, and who hears its reply. It is a request like
// every other, but that it starts from nothing, leaves nothing in the cache, and is not counted.
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/text_codec.h"

namespace tensorfold {

inline constexpr RequestId kCanaryRequest = std::numeric_limits<RequestId>::max();

// Empty when the model's tokenizer has no form for a conversation, or the prompt is too long.
std::vector<TokenId> canary_prompt(const TextCodec& text);

class CanarySink final : public RequestSink {
 public:
  void on_accepted(RequestId, int, int) override {}
  void on_progress(int, int) override {}
  void on_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob>) override {
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
  void on_finished(const Status& status, FinishReason, const ReplyStats&) override {
    ended = true;
    failed = !status.ok();
  }

  std::vector<TokenId> tokens;
  bool ended = false, failed = false;
};

}  // namespace tensorfold
