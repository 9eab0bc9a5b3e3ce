#include "ctl/bench/prompts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace tensorfold::ctl::bench {
namespace {

constexpr int64_t kProbeWords = 32;                     // of the prompt that tries token ids
constexpr int kProbeListsFew = 1, kProbeListsMany = 3;  // the two that count tokens per word
constexpr int kTokenizeRoundsMax = 8;                   // until there are tokens enough

constexpr FixedPrompt kSetA[] = {
    {"code",
     "Write a Python module with a class that keeps the most recently used entries of a mapping, "
     "up to a capacity, where each entry also expires after a number of seconds. Several threads "
     "use it at once. Give type hints and doc strings, and unit tests for eviction, expiry and "
     "concurrent use. Answer with code only."},
    {"prose",
     "Write an essay about the people who kept remote lighthouses burning before electricity: "
     "their nights, their supplies, the weather, and what was lost when the lamps were automated. "
     "Flowing paragraphs, no headings and no lists."},
    {"json",
     "Make up fifteen employees of a shipping company and print them as a JSON array. Each has id, "
     "name, role, department, email, salary, start_date and a list of three skills. Print nothing "
     "but the JSON."},
};

constexpr FixedPrompt kSetB[] = {
    {"code",
     "Write a Python class LRUCache with get and put in constant time, and pytest tests for it. "
     "Answer with code only."},
    {"prose",
     "Write about 400 words on how the printing press changed who could read, what they read and "
     "who feared it."},
    {"count", "Count from 1 to 200, one number after the other with commas between, nothing else."},
};

constexpr PromptSet kSets[] = {{"a", 512, kSetA}, {"b", 384, kSetB}};

constexpr std::string_view kWords[] = {
    "river",  "window", "paper",   "garden", "silver", "morning", "letter", "bridge",  "winter",
    "market", "summer", "stone",   "forest", "yellow", "kitchen", "travel", "music",   "doctor",
    "simple", "island", "corner",  "bottle", "ladder", "mirror",  "castle", "butter",  "candle",
    "copper", "cotton", "desert",  "dinner", "engine", "farmer",  "finger", "flower",  "friend",
    "glass",  "grass",  "hammer",  "harbor", "honey",  "horse",   "house",  "insect",  "iron",
    "jacket", "juice",  "knife",   "lemon",  "light",  "machine", "maple",  "metal",   "mountain",
    "needle", "number", "ocean",   "office", "orange", "oven",    "pencil", "pepper",  "picture",
    "planet", "plate",  "pocket",  "potato", "quiet",  "rabbit",  "radio",  "rain",    "ribbon",
    "road",   "roof",   "salt",    "school", "shadow", "sheep",   "shirt",  "shoe",    "signal",
    "snow",   "soap",   "spring",  "square", "stable", "station", "story",  "street",  "sugar",
    "table",  "tailor", "teacher", "thread", "ticket", "timber",  "tower",  "train",   "tunnel",
    "valley", "velvet", "village", "wagon",  "water",  "weather", "wheel",  "whisper", "wood",
    "wool",   "yard",   "north",   "south",  "early",  "late",    "small",  "large",   "green",
    "black",  "white",  "round",   "sharp",  "heavy",  "narrow",  "gentle", "open",    "empty",
};

}  // namespace

const PromptSet* prompt_set(std::string_view name) {
  for (const PromptSet& set : kSets)
    if (set.name == name) return &set;
  return nullptr;
}

uint64_t Words::next() {
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::string_view Words::word() { return kWords[next() % std::size(kWords)]; }

std::string Words::text(int64_t n) {
  std::string out;
  for (int64_t i = 0; i < n; ++i) {
    if (i > 0) out += ' ';
    out += word();
  }
  return out;
}

std::string Words::salt() {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "Run ";
  const uint64_t value = next();
  for (int shift = 60; shift >= 0; shift -= 4) out += kHex[value >> shift & 15];
  return out + ".";
}

std::string Words::phrase() {
  std::string out(word());
  out += '-';
  out += word();
  return out + '-' + std::to_string(1000 + next() % 9000);
}

Status LongPrompts::prepare(bool chat_only) {
  by_ids_ = false;
  if (!chat_only) {
    const auto ids = tokenize(words_.salt() + " " + words_.text(kProbeWords));
    if (ids.ok() && !ids->empty()) {
      Ask probe;
      probe.token_ids = *ids;
      by_ids_ = complete(target_, probe).ok();
    } else if (!ids.ok() && ids.status().reason().rfind("http_4", 0) != 0) {
      return ids.status();
    }
    if (by_ids_) return ok_status();
  }
  return calibrate();
}

// Every word as often as any other, so that what is counted is the mean of the list.
Status LongPrompts::calibrate() {
  const int lists[2] = {kProbeListsFew, kProbeListsMany};
  double cost[2] = {};
  for (int i = 0; i < 2; ++i) {
    Ask probe;
    probe.text = words_.salt();
    for (int n = 0; n < lists[i]; ++n) {
      for (const std::string_view word : kWords) (probe.text += ' ') += word;
    }
    const auto sample = complete(target_, probe);
    if (!sample.ok()) return sample.status().with_context("a short prompt");
    cost[i] = static_cast<double>(sample->prompt_tokens);
  }
  const double list = (cost[1] - cost[0]) / (lists[1] - lists[0]);
  tokens_per_word_ = list / static_cast<double>(std::size(kWords));
  tokens_around_ = cost[0] - list * lists[0];
  if (!(tokens_per_word_ > 0)) {
    return data_loss("three times the words have no more tokens by the server's usage");
  }
  return ok_status();
}

Result<std::vector<int64_t>> LongPrompts::tokenize(const std::string& text) {
  const Json body = Json::object({{"model", Json::string(target_.model)},
                                  {"prompt", Json::string(text)},
                                  {"add_special_tokens", Json::boolean(false)}});
  TF_ASSIGN_OR_RETURN(const Json reply,
                      exchange_json(*target_.wire, "POST", "/tokenize", dump_json_compact(body)));
  const Json* tokens = reply.find("tokens");
  if (tokens == nullptr || !tokens->is_array()) return data_loss("/tokenize gave no tokens");
  std::vector<int64_t> ids;
  for (const Json& token : tokens->as_array()) {
    const auto id = token.is_int() ? token.as_int64() : std::nullopt;
    if (!id) return data_loss("/tokenize gave a token that is no number");
    ids.push_back(*id);
  }
  return ids;
}

std::string LongPrompts::chat_text(int64_t tokens) {
  const double words = (static_cast<double>(tokens) - tokens_around_) / tokens_per_word_;
  return words_.salt() + " " + words_.text(std::max<int64_t>(1, std::llround(words)));
}

Result<Ask> LongPrompts::make(int64_t tokens) {
  Ask ask;
  if (!by_ids_) {
    ask.text = chat_text(tokens);
    return ask;
  }
  // Hardly a word is less than a token: as many words as tokens are missing, a few times at most.
  std::string text = words_.salt();
  for (int i = 0; i < kTokenizeRoundsMax; ++i) {
    const auto have = static_cast<int64_t>(ask.token_ids.size());
    text += " " + words_.text(tokens - have);
    TF_ASSIGN_OR_RETURN(ask.token_ids, tokenize(text));
    if (static_cast<int64_t>(ask.token_ids.size()) < tokens) continue;
    ask.token_ids.resize(static_cast<size_t>(tokens));
    return ask;
  }
  return data_loss("/tokenize gives fewer tokens than the text has words");
}

}  // namespace tensorfold::ctl::bench
