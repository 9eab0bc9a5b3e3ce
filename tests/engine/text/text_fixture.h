// A small tokenizer for tests: all bytes, a few merges, the control tokens of the format.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/text/prompt_encoder.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_file.h"

namespace tensorfold::test {

// How byte-level BPE spells a byte in tokenizer.json.
inline std::string spelled(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto b = static_cast<unsigned char>(c);
    char32_t code = b;
    if (b <= 0x20) {
      code = 0x100u + b;
    } else if (b >= 0x7F && b <= 0xA0) {
      code = 0x121u + (b - 0x7Fu);
    } else if (b == 0xAD) {
      code = 0x143u;
    }
    utf8_append(out, code);
  }
  return out;
}

struct TokenizerSpec {
  std::vector<std::pair<std::string, std::string>> merges = {
      {"h", "e"},    {"l", "l"},     {"he", "ll"}, {"hell", "o"},    {" ", "hello"},
      {"\n", "\n"},  {"a", "a"},     {"aa", "aa"}, {"aaaa", "aaaa"}, {"a", "b"},
      {"b", "a"},    {"ab", "ab"},   {"<", "/"},   {" ", "c"},       {" c", "a"},
      {" ca", "ll"}, {" call", "s"}, {">", "\n"},  {"\xEF", "\xBD"}, {"\xEF\xBD", "\x9C"}};
  std::vector<std::string> added = {
      std::string(kBosText),       std::string(kEosText),        "<｜▁pad▁｜>",
      std::string(kSystemText),    std::string(kUserText),       std::string(kAssistantText),
      std::string(kThinkOpenText), std::string(kThinkCloseText), std::string(kDsmlText),
      std::string(kReminderText),  std::string(kImageText),      "<think>ing"};
  bool merges_as_strings = false;
};

inline Json tokenizer_json(const TokenizerSpec& spec = {}) {
  Json::Object vocab;
  for (int b = 0; b < 256; ++b) {
    vocab.emplace_back(spelled(std::string(1, static_cast<char>(b))), Json::integer(b));
  }
  Json::Array merges;
  for (const auto& [left, right] : spec.merges) {
    const std::string a = spelled(left), b = spelled(right);
    vocab.emplace_back(a + b, Json::integer(static_cast<int64_t>(vocab.size())));
    merges.push_back(spec.merges_as_strings ? Json::string(a + " " + b)
                                            : Json::array({Json::string(a), Json::string(b)}));
  }
  Json::Array added;
  for (const std::string& content : spec.added) {
    added.push_back(
        Json::object({{"id", Json::integer(static_cast<int64_t>(vocab.size() + added.size()))},
                      {"content", Json::string(content)},
                      {"single_word", Json::boolean(false)},
                      {"lstrip", Json::boolean(false)},
                      {"rstrip", Json::boolean(false)},
                      {"normalized", Json::boolean(false)},
                      {"special", Json::boolean(false)}}));
  }
  const Json byte_level = Json::object({{"type", Json::string("ByteLevel")},
                                        {"add_prefix_space", Json::boolean(false)},
                                        {"trim_offsets", Json::boolean(true)},
                                        {"use_regex", Json::boolean(false)}});
  Json::Array splits;
  for (const std::string_view pattern : kSplitPatterns) {
    splits.push_back(
        Json::object({{"type", Json::string("Split")},
                      {"pattern", Json::object({{"Regex", Json::string(std::string(pattern))}})},
                      {"behavior", Json::string("Isolated")},
                      {"invert", Json::boolean(false)}}));
  }
  splits.push_back(byte_level);
  return Json::object(
      {{"version", Json::string("1.0")},
       {"truncation", Json::null()},
       {"padding", Json::null()},
       {"added_tokens", Json::array(std::move(added))},
       {"normalizer", Json::null()},
       {"pre_tokenizer", Json::object({{"type", Json::string("Sequence")},
                                       {"pretokenizers", Json::array(std::move(splits))}})},
       {"post_processor", Json::null()},
       {"decoder", byte_level},
       {"model", Json::object({{"type", Json::string("BPE")},
                               {"dropout", Json::null()},
                               {"unk_token", Json::null()},
                               {"continuing_subword_prefix", Json::null()},
                               {"end_of_word_suffix", Json::null()},
                               {"fuse_unk", Json::boolean(false)},
                               {"byte_fallback", Json::boolean(false)},
                               {"vocab", Json::object(std::move(vocab))},
                               {"merges", Json::array(std::move(merges))}})}});
}

inline std::shared_ptr<const Tokenizer> small_tokenizer(const TokenizerSpec& spec = {}) {
  auto tokenizer = Tokenizer::parse(dump_json_compact(tokenizer_json(spec)), "test");
  TF_CHECK_MSG(tokenizer.ok(), tokenizer.status().message().c_str());
  return std::move(*tokenizer);
}

}  // namespace tensorfold::test
