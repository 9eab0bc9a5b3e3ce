// The parts that whole replies and streams share: usage, the stats block, log-probabilities.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "daemon/api/json_out.h"
#include "engine/engine.h"

namespace tensorfold::api {

// What stands in every object of one reply.
struct ReplyInfo {
  std::string id;           // "chatcmpl-..."
  int64_t created_s = 0;    // Unix time
  std::string model;        // the served name
  std::string fingerprint;  // of the model and its numerics; may be empty
  bool include_usage = false;
  bool logprobs = false;
  bool hide_calls = false;  // tool_choice "none": calls that come all the same are not shown
};

using TokenText = std::function<std::string(TokenId)>;  // raw bytes of a token

void put_usage(JsonOut& json, const Usage& usage);
// The stats block: token_sha is the handle by which two replies are compared.
void put_stats(JsonOut& json, const ReplyStats& stats);
// One list entry per token; appends to `out` with a comma before each entry but the first.
void append_logprobs(std::string& out, std::span<const TokenLogprob> tokens, const TokenText& text);
void put_logprobs(JsonOut& json, std::string_view entries);

// "stop", "length" or "tool_calls".
std::string_view finish_name(FinishReason reason, int calls_shown);

}  // namespace tensorfold::api
