// A TextCodec for tests: one token per letter, a few control tokens, and a plain OutputStream.
// And a sink that keeps what it is told, checking the order of calls.
#pragma once

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "engine/text_codec.h"
#include "tests/engine/scripted_model.h"

namespace tensorfold::scripted {

class ScriptedStream final : public OutputStream {
 public:
  explicit ScriptedStream(const OutputOptions& options)
      : options_(options), reasoning_(options.starts_in_reasoning) {}
  OutputDelta feed(std::span<const TokenId> ids) override {
    for (const TokenId id : ids) {
      if (stopped_) break;
      if (id == kThinkEnd) {
        reasoning_ = false;
      } else if (reasoning_) {
        ++reasoning_tokens_;
      } else if (id == kCallOpen) {
        ++calls_;
      } else if (id == kCallClose) {
        closed_ = calls_;
      } else {
        text_.push_back(static_cast<char>('A' + id));
      }
      for (const std::string& s : options_.stop) {
        if (text_.size() >= s.size() && text_.compare(text_.size() - s.size(), s.size(), s) == 0)
          stopped_ = true;
      }
    }
    return {};
  }
  OutputDelta finish() override { return {}; }
  bool stopped() const override { return stopped_; }
  int reasoning_tokens() const override { return reasoning_tokens_; }
  int tool_calls() const override { return calls_; }
  int tool_calls_closed() const override { return closed_; }

 private:
  const OutputOptions options_;
  std::string text_;
  bool reasoning_;
  bool stopped_ = false;
  int reasoning_tokens_ = 0, calls_ = 0, closed_ = 0;
};

class ScriptedText final : public TextCodec {
 public:
  int vocab_size() const override { return kVocab; }
  Result<PromptIds> encode(const Prompt& prompt) const override {
    if (on_encode) on_encode();
    PromptIds out;
    if (prompt.ids) {
      out.ids = *prompt.ids;
    } else {
      for (const ChatMessage& m : prompt.messages) {
        for (const ContentPart& p : m.content) {
          if (p.text == "bad") return invalid_argument("messages[0].content is bad", "messages");
          for (const char c : p.text) out.ids.push_back(10 + static_cast<unsigned char>(c) % 50);
        }
        if (m.role == Role::kSystem) out.head_tokens = static_cast<int64_t>(out.ids.size());
      }
    }
    out.starts_in_reasoning = prompt.thinking.enabled;
    return out;
  }
  std::unique_ptr<OutputStream> output_stream(const OutputOptions& options) const override {
    return std::make_unique<ScriptedStream>(options);
  }
  std::string token_text(TokenId id) const override {
    return std::string(1, static_cast<char>('A' + id));
  }
  bool ends_reply(TokenId id) const override { return id == kEos; }
  TokenId think_end() const override { return kThinkEnd; }

  std::function<void()> on_encode;  // tests hold a worker here
};

struct Reply {
  bool accepted = false;
  int finished = 0;
  int prompt_tokens = 0;
  int progress = 0;
  std::vector<TokenId> ids;
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob> prompt;  // on_prompt_logprobs
  Status status;
  FinishReason reason = FinishReason::kStop;
  ReplyStats stats;
};

class KeepingSink final : public RequestSink {
 public:
  void on_accepted(RequestId, int prompt_tokens, int) override {
    std::lock_guard lock(mutex_);
    check(!reply_.accepted && reply_.finished == 0);
    reply_.accepted = true;
    reply_.prompt_tokens = prompt_tokens;
    changed_.notify_all();
  }
  void on_progress(int done, int total) override {
    std::lock_guard lock(mutex_);
    check(reply_.accepted && reply_.finished == 0 && done > reply_.progress && done <= total);
    reply_.progress = done;
    changed_.notify_all();
  }
  void on_prompt_logprobs(std::span<const TokenLogprob> tokens) override {
    std::lock_guard lock(mutex_);
    check(reply_.accepted && reply_.finished == 0 && reply_.ids.empty() && !tokens.empty());
    reply_.prompt.insert(reply_.prompt.end(), tokens.begin(), tokens.end());
    changed_.notify_all();
  }
  void on_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob> logprobs) override {
    std::lock_guard lock(mutex_);
    check(reply_.accepted && reply_.finished == 0 && !ids.empty());
    reply_.ids.insert(reply_.ids.end(), ids.begin(), ids.end());
    reply_.logprobs.insert(reply_.logprobs.end(), logprobs.begin(), logprobs.end());
    changed_.notify_all();
  }
  void on_finished(const Status& status, FinishReason reason, const ReplyStats& stats) override {
    std::lock_guard lock(mutex_);
    ++reply_.finished;
    check(reply_.finished == 1);
    reply_.status = status;
    reply_.reason = reason;
    reply_.stats = stats;
    changed_.notify_all();
  }

  Reply reply() const {
    std::lock_guard lock(mutex_);
    BOOST_REQUIRE_MESSAGE(order_kept_, "events came in a wrong order");
    return reply_;
  }
  struct SoFar {
    bool accepted, finished;
    size_t got;  // tokens and positions of the prompt that it was told of
  };
  SoFar so_far() const {
    std::lock_guard lock(mutex_);
    return {reply_.accepted, reply_.finished > 0,
            reply_.ids.size() + static_cast<size_t>(reply_.progress)};
  }
  // Waits until `done` says so; false after `seconds`.
  bool wait(const std::function<bool(const Reply&)>& done, int seconds = 60) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(seconds), [&] { return done(reply_); });
  }
  Reply wait_finished() {
    BOOST_REQUIRE_MESSAGE(wait([](const Reply& r) { return r.finished > 0; }), "no end came");
    return reply();
  }

 private:
  void check(bool ok) { order_kept_ = order_kept_ && ok; }
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool order_kept_ = true;
  Reply reply_;
};

}  // namespace tensorfold::scripted
