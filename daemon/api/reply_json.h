// The parts that whole replies and streams share: usage, the stats block, log-probabilities.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/api/json_out.h"
#include "engine/engine.h"

namespace tensorfold::api {

using TokenText = std::function<std::string(TokenId)>;  // raw bytes of a token

// What stands in every object of one reply.
struct ReplyInfo {
  std::string id;           // "chatcmpl-..."
  int64_t created_s = 0;    // Unix time
  std::string model;        // the served name
  std::string fingerprint;  // of the model and its numerics; may be empty
  TokenText text;
  int prompt_tokens = 0, cached_tokens = 0;
};

// The text of one choice, collected.
struct ReplyText {
  struct Call {
    std::string id, name, arguments;
  };
  std::string reasoning, content;
  std::vector<Call> calls;
  void add(const OutputDelta& delta);
};

void put_usage(JsonOut& json, const Usage& usage);
// The stats block: token_sha is the handle by which two replies are compared.
void put_stats(JsonOut& json, const ReplyStats& stats, const std::vector<TokenId>* ids = nullptr);
// A log-probability as JSON can say it: one of minus infinity is kNoLogprob.
inline constexpr double kNoLogprob = -9999;
double shown_logprob(float logprob);
// One list entry per token; appends to `out` with a comma before each entry but the first.
void append_logprobs(std::string& out, std::span<const TokenLogprob> tokens, const TokenText& text);
// The entries of "prompt_logprobs": null for the first token, then objects by id, the token's own
// entry first, with at most `most` alternatives.
void append_prompt_logprobs(std::string& out, std::span<const TokenLogprob> tokens, int most,
                            const TokenText& text);
void put_logprobs(JsonOut& json, std::string_view entries);

// "stop", "length" or "tool_calls".
std::string_view finish_name(FinishReason reason, int calls_shown);

}  // namespace tensorfold::api
