// The codec over engine/text. Immutable.
#include "engine/text_codec.h"

#include <algorithm>

#include "engine/grammar/vocab_image.h"
#include "engine/text/output_stream.h"
#include "engine/text/prompt_encoder.h"
#include "engine/text/tokenizer.h"

namespace tensorfold {
namespace {

class TokenizerCodec final : public TextCodec {
 public:
  TokenizerCodec(std::shared_ptr<const Tokenizer> tokenizer, TokenId eos, bool allow_control)
      : tokenizer_(std::move(tokenizer)), allow_control_(allow_control) {
    ends_.push_back(eos);
    for (const auto text : {kEosText, kSystemText, kUserText, kAssistantText, kReminderText}) {
      if (const auto id = tokenizer_->id_of(text)) ends_.push_back(*id);
    }
    think_end_ = tokenizer_->id_of(kThinkCloseText).value_or(-1);
    call_token_ = tokenizer_->id_of(kDsmlText).value_or(-1);
    user_token_ = tokenizer_->id_of(kUserText).value_or(-1);
  }

  int vocab_size() const override { return tokenizer_->vocab_size(); }

  Result<PromptIds> encode(const Prompt& prompt) const override {
    TF_ASSIGN_OR_RETURN(TokenizedPrompt t,
                        tokenize_prompt(prompt, *tokenizer_, PromptFormat::kV41, allow_control_));
    PromptIds out{std::move(t.ids), t.ends_in_reasoning};
    if (!prompt.ids && !prompt.raw) out.head_tokens = head_of(out.ids);
    return out;
  }

  std::unique_ptr<OutputStream> output_stream(const OutputOptions& options) const override {
    return make_output_stream(tokenizer_, options);
  }

  std::string token_text(TokenId id) const override {
    return std::string(tokenizer_->token_bytes(id));
  }

  bool ends_reply(TokenId id) const override {
    return std::find(ends_.begin(), ends_.end(), id) != ends_.end();
  }

  TokenId think_end() const override { return think_end_; }
  TokenId call_token() const override { return call_token_; }

  Result<std::shared_ptr<const grammar::VocabImage>> vocab_image(
      int32_t mask_tokens) const override {
    return grammar::VocabImage::from_tokenizer(*tokenizer_, mask_tokens, {ends_[0]});
  }

 private:
  // System text and tools end where the first message of a user begins.
  int64_t head_of(const std::vector<TokenId>& ids) const {
    const auto at = std::find(ids.begin(), ids.end(), user_token_);
    return at == ids.end() ? 0 : at - ids.begin();
  }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const bool allow_control_;
  std::vector<TokenId> ends_;
  TokenId think_end_ = -1, call_token_ = -1, user_token_ = -1;
};

}  // namespace

Result<std::shared_ptr<const grammar::VocabImage>> TextCodec::vocab_image(int32_t) const {
  return unsupported("this vocabulary has no image for token masks");
}

Result<std::unique_ptr<TextCodec>> load_text_codec(const std::string& model_path, TokenId eos,
                                                   bool allow_control_tokens) {
  TF_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::load(model_path + "/tokenizer.json"));
  return std::unique_ptr<TextCodec>(std::make_unique<TokenizerCodec>(
      std::shared_ptr<const Tokenizer>(std::move(tokenizer)), eos, allow_control_tokens));
}

}  // namespace tensorfold
