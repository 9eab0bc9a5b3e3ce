// TextCodec: what the engine needs of engine/text: prompts to ids, ids to text, and which ids have
// a meaning for the end of a reply. Immutable after loading; any thread may use it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/engine.h"

namespace tensorfold::grammar {
class VocabImage;
}

namespace tensorfold {

struct PromptIds {
  std::vector<TokenId> ids;
  bool starts_in_reasoning = false;  // the prompt ends with <think>
  int64_t head_tokens = 0;           // what comes before the first message of a user; 0: unknown
};

class TextCodec {
 public:
  virtual ~TextCodec() = default;
  virtual int vocab_size() const = 0;
  virtual Result<PromptIds> encode(const Prompt& prompt) const = 0;
  virtual std::unique_ptr<OutputStream> output_stream(const OutputOptions& options) const = 0;
  virtual std::string token_text(TokenId id) const = 0;
  // The end-of-sentence token, or the header of another turn: the reply is over before it.
  virtual bool ends_reply(TokenId id) const = 0;
  virtual TokenId think_end() const = 0;             // </think>, or -1
  virtual TokenId call_token() const { return -1; }  // part of every tag of a call, or -1
  // The vocabulary as token masks of `mask_tokens` bits need it; made by each call.
  virtual Result<std::shared_ptr<const grammar::VocabImage>> vocab_image(int32_t mask_tokens) const;
};

// Over the tokenizer.json of a model folder. `eos` is config.json's; the other control tokens are
// looked up by content.
Result<std::unique_ptr<TextCodec>> load_text_codec(const std::string& model_path, TokenId eos,
                                                   bool allow_control_tokens);

}  // namespace tensorfold
