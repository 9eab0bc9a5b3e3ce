#include "engine/text/output_stream.h"

#include <utility>
#include <vector>

#include "engine/text/output_parser.h"

namespace tensorfold {
namespace {

struct ControlText {
  std::string_view text;
  ReplyControl kind;
};
constexpr std::string_view kPadText = "<｜▁pad▁｜>";
constexpr ControlText kControls[] = {
    {kThinkOpenText, ReplyControl::kThinkOpen}, {kThinkCloseText, ReplyControl::kThinkClose},
    {kDsmlText, ReplyControl::kDsml},           {kBosText, ReplyControl::kSilent},
    {kEosText, ReplyControl::kSilent},          {kPadText, ReplyControl::kSilent},
    {kUserText, ReplyControl::kTurn},           {kAssistantText, ReplyControl::kTurn},
    {kSystemText, ReplyControl::kTurn},         {kReminderText, ReplyControl::kTurn},
};

class OutputStreamImpl final : public OutputStream {
 public:
  OutputStreamImpl(std::shared_ptr<const Tokenizer> tokenizer, const OutputOptions& options,
                   PromptFormat format)
      : tokenizer_(std::move(tokenizer)), parser_(options, format) {
    for (const ControlText& control : kControls) {
      if (const auto id = tokenizer_->id_of(control.text))
        controls_.emplace_back(*id, control.kind);
    }
  }

  OutputDelta feed(std::span<const TokenId> ids) override {
    for (const TokenId id : ids) {
      if (parser_.stopped()) break;
      if (parser_.in_reasoning()) ++reasoning_tokens_;
      parser_.control(kind_of(id), tokenizer_->token_bytes(id));
    }
    return parser_.take();
  }

  OutputDelta finish() override {
    parser_.finish();
    return parser_.take();
  }

  bool stopped() const override { return parser_.stopped(); }
  int stop_index() const override { return parser_.stop_index(); }
  int reasoning_tokens() const override { return reasoning_tokens_; }
  int tool_calls() const override { return parser_.calls(); }
  int tool_calls_closed() const override { return parser_.calls_closed(); }

 private:
  ReplyControl kind_of(TokenId id) const {
    if (!tokenizer_->is_added(id)) return ReplyControl::kNone;
    for (const auto& [control, kind] : controls_) {
      if (control == id) return kind;
    }
    return ReplyControl::kNone;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  OutputParser parser_;
  std::vector<std::pair<TokenId, ReplyControl>> controls_;
  int reasoning_tokens_ = 0;
};

}  // namespace

std::unique_ptr<OutputStream> make_output_stream(std::shared_ptr<const Tokenizer> tokenizer,
                                                 const OutputOptions& options,
                                                 PromptFormat format) {
  return std::make_unique<OutputStreamImpl>(std::move(tokenizer), options, format);
}

}  // namespace tensorfold
