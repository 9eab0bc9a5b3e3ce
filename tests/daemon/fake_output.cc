#include "tests/daemon/fake_output.h"

#include <algorithm>

#include "engine/base/utf8.h"
#include "tests/daemon/fake_engine.h"

namespace tensorfold {
namespace {

class FakeOutput final : public OutputStream {
 public:
  explicit FakeOutput(const OutputOptions& options)
      : options_(options),
        state_(options.starts_in_reasoning ? State::kReasoning : State::kContent) {}

  OutputDelta feed(std::span<const TokenId> ids) override {
    OutputDelta delta;
    for (const TokenId id : ids) take(id, delta);
    release(delta, false);
    return delta;
  }
  OutputDelta finish() override {
    OutputDelta delta;
    release(delta, true);
    return delta;
  }
  bool stopped() const override { return stopped_; }
  int stop_index() const override { return stop_index_; }
  int reasoning_tokens() const override { return reasoning_tokens_; }
  int tool_calls() const override { return calls_; }
  int tool_calls_closed() const override { return closed_; }

 private:
  enum class State : unsigned char { kReasoning, kContent, kName, kArguments };

  void take(TokenId id, OutputDelta& delta) {
    if (stopped_ || id == kFakeEnd) return;
    if (state_ == State::kReasoning) {
      ++reasoning_tokens_;
      if (id == kFakeThinkEnd) {
        state_ = State::kContent;
      } else {
        delta.reasoning += static_cast<char>(id);
      }
    } else if (id == kFakeCallBegin) {
      state_ = State::kName;
      name_.clear();
    } else if (id == kFakeCallArguments) {
      state_ = State::kArguments;
      ToolCallDelta call;
      call.index = calls_++;
      call.id = "call_" + std::to_string(options_.call_id_seed % 100000) + "_" +
                std::to_string(call.index);
      call.name = name_;
      delta.tool_calls.push_back(call);
    } else if (id == kFakeCallEnd) {
      ++closed_;
      state_ = State::kContent;
    } else if (state_ == State::kName) {
      name_ += static_cast<char>(id);
    } else if (state_ == State::kArguments) {
      ToolCallDelta piece;
      piece.index = calls_ - 1;
      piece.arguments = std::string(1, static_cast<char>(id));
      delta.tool_calls.push_back(piece);
    } else {
      held_ += static_cast<char>(id);
    }
  }

  // Content goes out except for what may still become a stop string or a character.
  void release(OutputDelta& delta, bool all) {
    size_t keep = all ? 0 : utf8_unfinished_tail(held_);
    for (size_t i = 0; i < options_.stop.size(); ++i) {
      const std::string& stop = options_.stop[i];
      if (const size_t at = held_.find(stop); at != std::string::npos) {
        delta.content += utf8_lossy(held_.substr(0, at));
        held_.clear();
        stopped_ = true;
        stop_index_ = static_cast<int>(i);
        return;
      }
      for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep && !all; --n) {
        if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
      }
    }
    delta.content += utf8_lossy(held_.substr(0, held_.size() - keep));
    held_.erase(0, held_.size() - keep);
  }

  const OutputOptions options_;
  State state_;
  std::string held_, name_;
  bool stopped_ = false;
  int stop_index_ = -1;
  int reasoning_tokens_ = 0, calls_ = 0, closed_ = 0;
};

}  // namespace

std::unique_ptr<OutputStream> make_fake_output(const OutputOptions& options) {
  return std::make_unique<FakeOutput>(options);
}

}  // namespace tensorfold
