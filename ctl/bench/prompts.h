// What is asked: fixed prompts of three kinds, and long prompts of random words that no cache has
// seen. The texts are ours.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ctl/bench/completion.h"

namespace tensorfold::ctl::bench {

inline constexpr int64_t kBenchPromptTokensMax = int64_t{1} << 20;  // of one long prompt

struct FixedPrompt {
  std::string_view kind;  // "code", "prose", "json" or "count"
  std::string_view text;
};

struct PromptSet {
  std::string_view name;
  int64_t max_tokens;
  std::span<const FixedPrompt> prompts;
};

// "a" (512 tokens: code, prose, json) or "b" (384 tokens: code, prose, count); nullptr: neither.
const PromptSet* prompt_set(std::string_view name);

// A stream of random words: the same for the same seed.
class Words {
 public:
  explicit Words(uint64_t seed) : state_(seed) {}
  uint64_t next();              // SplitMix64 (Steele, Lea, Flood 2014)
  std::string_view word();      // a common English word
  std::string text(int64_t n);  // n words between spaces
  std::string salt();           // "Run 0123456789abcdef."
  std::string phrase();         // "word-word-1234"

 private:
  uint64_t state_;
};

// Prompts of about so many tokens, cold because each begins with its own salt. Where the server
// has /tokenize and /v1/completions they are token ids, and exact; else chat messages whose words
// are counted by what two short prompts cost.
class LongPrompts {
 public:
  LongPrompts(const Target& target, uint64_t seed) : target_(target), words_(seed) {}

  // Asks the server; with `chat_only` it does not try token ids.
  Status prepare(bool chat_only);

  Result<Ask> make(int64_t tokens);       // max_tokens 1
  std::string chat_text(int64_t tokens);  // after prepare()
  Words& words() { return words_; }
  bool by_ids() const { return by_ids_; }

 private:
  Status calibrate();
  Result<std::vector<int64_t>> tokenize(const std::string& text);

  Target target_;
  Words words_;
  bool by_ids_ = false;
  double tokens_per_word_ = 0;
  double tokens_around_ = 0;  // template and salt
};

}  // namespace tensorfold::ctl::bench
