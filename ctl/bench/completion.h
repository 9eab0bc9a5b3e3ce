// One streamed completion, timed: what every figure is made of.
//
// Token counts come from the server's `usage` only: with speculation one event carries several
// tokens. Times are those of events that carry text (content or reasoning).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ctl/bench/wire.h"
#include "engine/base/json.h"

namespace tensorfold::ctl::bench {

inline constexpr size_t kBenchTextBytesMax = size_t{64} << 20;  // text of one reply
inline constexpr size_t kBenchTextEventsMax = size_t{1} << 22;  // of one reply

// What to ask for. Greedy, thinking off.
struct Ask {
  std::string text;                // the user's message, or
  std::vector<int64_t> token_ids;  // a raw prompt for /v1/completions when not empty
  int64_t max_tokens = 1;
  bool ignore_eos = false;
};

struct Target {
  Wire* wire = nullptr;
  std::string model;
  bool plain = false;  // leave chat_template_kwargs out, for servers that refuse it
};

struct Sample {
  int64_t sent_us = 0;
  int64_t end_us = 0;
  int64_t finish_us = 0;         // the event with the finish reason; 0: none
  std::vector<int64_t> text_us;  // each event with text, in order
  bool past_end = false;         // asked with ignore_eos: tokens behind the end have no text
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  std::optional<int64_t> cached_tokens;  // absent: the server does not say
  std::string text, reasoning, finish_reason, token_sha;

  // The first text, or the end of a reply without any (a single token may have no text).
  int64_t first_us() const { return text_us.empty() ? finish_us : text_us.front(); }

  // The last text; of a reply that went on past its end, the event with the finish reason.
  int64_t last_us() const {
    return text_us.empty() || (past_end && finish_us != 0) ? finish_us : text_us.back();
  }
};

// Errors name the request and what came: an HTTP status with the server's message (reason
// "http_<status>"), the number of a malformed event, a missing usage.
// `on_first_text` is called at the first text, on this thread.
Result<Sample> complete(const Target& target, const Ask& ask,
                        const std::function<void()>& on_first_text = {});

// GET or POST of a JSON document, with the same errors.
Result<Json> exchange_json(Wire& wire, const std::string& method, const std::string& path,
                           const std::string& body = "");

// The first model that the server lists.
Result<std::string> first_model(Wire& wire);

}  // namespace tensorfold::ctl::bench
