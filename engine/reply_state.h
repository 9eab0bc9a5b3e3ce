// ReplyState: decides, token by token at the commit, what belongs to a reply and where it ends:
// end token, stop string, closed tool call, thinking budget, a loop, max_tokens. A function of the
// ids alone: how they were cut into steps, by drafts or by timing, can't change it.
// Owned by the engine thread, one per running request.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/loop_guard.h"
#include "engine/sched/step_plan.h"
#include "engine/text_codec.h"

namespace tensorfold {

class ReplyState {
 public:
  ReplyState(const Request& request, bool starts_in_reasoning, int64_t reply_tokens,
             const TextCodec& text);

  struct Commit {
    size_t kept = 0;               // of the tokens given, the first `kept` are the reply's
    std::optional<TokenId> force;  // then this one is put in
    bool ended = false;
    FinishReason reason = FinishReason::kStop;
    bool loop = false;  // `force` or `ended` is because the reply goes round in circles
  };
  // Tokens in order; none: what may be decided before the first one (a budget or limit of 0).
  Commit take(std::span<const TokenId> tokens);

  // How many drafts may be verified in one step: what is decided by count, the end of a budget or
  // of a loop's last window, must fall on the end of a step.
  int32_t drafts_allowed() const;

  int completion_tokens() const { return static_cast<int>(ids_.size()); }
  int reasoning_tokens() const { return reasoning_tokens_; }
  bool loop_closed_thinking() const { return loop_closed_thinking_; }
  bool loop_ended() const { return loop_ended_; }
  std::string token_sha() const;

 private:
  // Adds one token; true when the reply ends with it.
  bool add(TokenId id, Commit& commit);
  void leave_loop(Commit& commit);
  bool budget_reached() const;

  const TextCodec& text_;
  const int64_t reply_tokens_;
  const bool ignore_eos_;
  const bool one_call_;
  const std::optional<int> budget_;
  bool in_reasoning_;
  int reasoning_tokens_ = 0;
  std::optional<LoopGuard> loop_;  // when the request asks for it
  bool looped_ = false;            // by the token that was added last
  bool loop_closed_thinking_ = false, loop_ended_ = false;
  std::vector<TokenId> ids_;
  std::unique_ptr<OutputStream> stream_;  // only when text decides the end
};

}  // namespace tensorfold
