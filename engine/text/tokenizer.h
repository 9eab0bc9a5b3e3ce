// Tokenizer of a Hugging Face tokenizer.json: byte-level BPE with the V4 family's pre-tokenizer.
//
// Owner: whoever loaded it; immutable afterwards, so every const method may be called from any
// thread. Text in, token ids out, and back. It deliberately implements one kind of tokenizer.json
// (byte-level BPE, the pre-tokenizer of pretokenizer.h, added tokens without strip flags) and
// refuses every other by naming the field.
//
// Order of work, as the model was trained with: added tokens are cut out first (leftmost, then
// longest), the text between them is pre-tokenized, each piece is merged by rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/engine.h"

namespace tensorfold {

inline constexpr size_t kTokenizerFileMaxBytes = size_t{256} << 20;
inline constexpr int kTokenizerVocabMaxTokens = 4 << 20;
inline constexpr size_t kAddedTokenMaxBytes = 256;

// A range of bytes of a text.
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;  // one past the last byte
};

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;  // matched after those that are not (as the format defines)
};

class Tokenizer {
 public:
  // Reads a tokenizer.json. Errors name the file and the field.
  static Result<std::unique_ptr<Tokenizer>> load(const std::string& path);
  // The same from memory; `where` begins the error messages.
  static Result<std::unique_ptr<Tokenizer>> parse(std::string_view json, std::string_view where);

  virtual ~Tokenizer() = default;

  // Tokenizes `text`, which should be valid UTF-8 (bytes that are not are kept, one by one).
  // An added token is recognized wherever its text stands, except where it touches a byte of
  // `plain` (ascending, not overlapping): there the same text is ordinary text. Nothing is cut at
  // the borders of `plain`, so merges run across them as they do in the reference.
  // `steps`, when given, is increased by the work done (see docs/limits.md: under 40 n log2 n).
  virtual std::vector<TokenId> encode(std::string_view text, std::span<const TextSpan> plain = {},
                                      uint64_t* steps = nullptr) const = 0;

  // The bytes of all tokens, one after another. Ids outside the vocabulary give nothing.
  std::string decode(std::span<const TokenId> ids) const;

  // The bytes that a token stands for (an added token: its content); empty for unknown ids. Valid
  // as long as the tokenizer.
  virtual std::string_view token_bytes(TokenId id) const = 0;

  // The id of an added token by its content: how control tokens are found.
  virtual std::optional<TokenId> id_of(std::string_view content) const = 0;
  virtual bool is_added(TokenId id) const = 0;
  virtual std::span<const AddedToken> added_tokens() const = 0;

  // One more than the highest id.
  virtual int vocab_size() const = 0;
};

}  // namespace tensorfold
