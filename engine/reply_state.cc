// Ends of replies. Owner: the engine thread.
#include "engine/reply_state.h"

#include <openssl/sha.h>

#include <algorithm>

#include "engine/base/check.h"

namespace tensorfold {

ReplyState::ReplyState(const Request& request, bool starts_in_reasoning, int64_t reply_tokens,
                       const TextCodec& text)
    : text_(text),
      reply_tokens_(reply_tokens),
      ignore_eos_(request.ignore_eos),
      one_call_(!request.parallel_tool_calls),
      budget_(starts_in_reasoning && text.think_end() >= 0 ? request.prompt.thinking.budget
                                                           : std::nullopt),
      in_reasoning_(starts_in_reasoning) {
  if (request.loop_guard) loop_.emplace();
  if (request.stop.empty() && !one_call_) return;
  OutputOptions options;
  options.starts_in_reasoning = starts_in_reasoning;
  options.stop = request.stop;
  stream_ = text.output_stream(options);
}

bool ReplyState::budget_reached() const {
  return in_reasoning_ && budget_ && reasoning_tokens_ >= *budget_;
}

int32_t ReplyState::drafts_allowed() const {
  int32_t allowed = kDraftRowsMax;
  if (in_reasoning_ && budget_) allowed = std::min(allowed, *budget_ - reasoning_tokens_ - 1);
  if (loop_) allowed = std::min(allowed, loop_->tokens_to_decision() - 1);
  return std::max(allowed, 0);
}

ReplyState::Commit ReplyState::take(std::span<const TokenId> tokens) {
  Commit commit;
  for (const TokenId id : tokens) {
    if (!ignore_eos_ && text_.ends_reply(id)) {
      commit.ended = true;
      commit.reason = FinishReason::kStop;
      break;
    }
    ++commit.kept;
    if (add(id, commit)) break;
    TF_CHECK_MSG(!budget_reached() || commit.kept == tokens.size(), "drafts went past the budget");
    TF_CHECK_MSG(!looped_ || commit.kept == tokens.size(), "drafts went past a loop's window");
  }
  if (!commit.ended && static_cast<int64_t>(ids_.size()) >= reply_tokens_) {
    commit.ended = true;
    commit.reason = FinishReason::kLength;
  }
  if (!commit.ended && looped_) leave_loop(commit);
  if (!commit.ended && budget_reached()) {
    commit.force = text_.think_end();
    add(*commit.force, commit);
  }
  if (commit.ended && commit.reason == FinishReason::kStop && stream_) {
    stream_->finish();
    if (stream_->tool_calls() > 0) commit.reason = FinishReason::kToolCalls;
  }
  return commit;
}

// Reasoning is closed, so that an answer follows; a reply past that is cut.
void ReplyState::leave_loop(Commit& commit) {
  commit.loop = true;
  looped_ = false;
  if (in_reasoning_ && text_.think_end() >= 0) {
    loop_closed_thinking_ = true;
    commit.force = text_.think_end();
    add(*commit.force, commit);
    return;
  }
  loop_ended_ = true;
  commit.ended = true;
  commit.reason = FinishReason::kLength;
}

bool ReplyState::add(TokenId id, Commit& commit) {
  ids_.push_back(id);
  if (loop_) looped_ = loop_->add(id);
  if (in_reasoning_) {
    if (id == text_.think_end()) {
      in_reasoning_ = false;
      looped_ = false;
      if (loop_) loop_->restart();  // the answer may say again what the reasoning said
    } else {
      ++reasoning_tokens_;
    }
  }
  if (stream_) {
    stream_->feed(std::span(&id, 1));
    if (stream_->stopped() || (one_call_ && stream_->tool_calls_closed() > 0)) {
      commit.ended = true;
      commit.reason = FinishReason::kStop;  // take() turns it into kToolCalls where there are any
      return true;
    }
  }
  if (static_cast<int64_t>(ids_.size()) >= reply_tokens_) {
    commit.ended = true;
    commit.reason = FinishReason::kLength;
  }
  return commit.ended;
}

std::string ReplyState::token_sha() const {
  constexpr size_t kShownBytes = 6;
  std::string joined;
  for (const TokenId id : ids_) {
    if (!joined.empty()) joined.push_back(',');
    joined += std::to_string(id);
  }
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(joined.data()), joined.size(), digest);
  constexpr char kHex[] = "0123456789abcdef";
  std::string hex;
  for (size_t i = 0; i < kShownBytes; ++i) {
    hex.push_back(kHex[digest[i] >> 4]);
    hex.push_back(kHex[digest[i] & 15]);
  }
  return hex;
}

}  // namespace tensorfold
