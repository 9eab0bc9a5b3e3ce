#include "daemon/api/reply_json.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/base/utf8.h"

namespace tensorfold::api {
namespace {

void put_token(JsonOut& json, TokenId id, float logprob, const TokenText& text) {
  const std::string bytes = text(id);
  json.key("token").string(utf8_lossy(bytes));
  json.key("logprob").number(shown_logprob(logprob));
  json.key("bytes").open_list();
  for (const char c : bytes) json.number(static_cast<int>(static_cast<unsigned char>(c)));
  json.close_list();
}

}  // namespace

void ReplyText::add(const OutputDelta& delta) {
  reasoning += delta.reasoning;
  content += delta.content;
  for (const ToolCallDelta& piece : delta.tool_calls) {
    const auto index = static_cast<size_t>(piece.index);
    TF_CHECK_LE(index, calls.size());
    if (index == calls.size()) calls.emplace_back();
    if (!piece.id.empty()) calls[index].id = piece.id;
    if (!piece.name.empty()) calls[index].name = piece.name;
    calls[index].arguments += piece.arguments;
  }
}

double shown_logprob(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : kNoLogprob;
}

void put_usage(JsonOut& json, const Usage& usage) {
  json.open_object();
  json.key("prompt_tokens").number(usage.prompt_tokens);
  json.key("completion_tokens").number(usage.completion_tokens);
  json.key("total_tokens").number(usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").open_object();
  json.key("cached_tokens").number(usage.cached_tokens).close_object();
  json.key("completion_tokens_details").open_object();
  json.key("reasoning_tokens").number(usage.reasoning_tokens).close_object();
  json.key("prompt_cache_hit_tokens").number(usage.cached_tokens);
  json.key("prompt_cache_miss_tokens").number(usage.prompt_tokens - usage.cached_tokens);
  json.close_object();
}

void put_stats(JsonOut& json, const ReplyStats& stats, const std::vector<TokenId>* ids) {
  json.open_object();
  json.key("token_sha").string(stats.token_sha);
  // As the signed number that a request's "seed" takes.
  json.key("sampling_seed").string(std::to_string(static_cast<int64_t>(stats.sampling_seed)));
  json.key("queue_s").number(stats.queue_s);
  json.key("prefill_s").number(stats.prefill_s);
  json.key("decode_s").number(stats.decode_s);
  json.key("cached").number(stats.usage.cached_tokens);
  json.key("rounds").number(stats.rounds);
  json.key("drafted").number(stats.drafted);
  json.key("accepted").number(stats.accepted);
  if (ids != nullptr) {
    json.key("token_ids").open_list();
    for (const TokenId id : *ids) json.number(id);
    json.close_list();
  }
  if (stats.loop_closed_thinking || stats.loop_ended) {
    json.key("loop_guard").open_list();
    if (stats.loop_closed_thinking) json.string("closed_thinking");
    if (stats.loop_ended) json.string("ended");
    json.close_list();
  }
  if (!stats.annotations.empty()) {
    json.key("annotations").open_list();
    for (const std::string& s : stats.annotations) json.string(utf8_lossy(s));
    json.close_list();
  }
  json.close_object();
}

void append_logprobs(std::string& out, std::span<const TokenLogprob> tokens,
                     const TokenText& text) {
  for (const TokenLogprob& token : tokens) {
    if (!out.empty()) out += ',';
    JsonOut json(out);
    json.open_object();
    put_token(json, token.id, token.logprob, text);
    json.key("top_logprobs").open_list();
    for (const auto& [id, logprob] : token.top) {
      json.open_object();
      put_token(json, id, logprob, text);
      json.close_object();
    }
    json.close_list().close_object();
  }
}

void append_prompt_logprobs(std::string& out, std::span<const TokenLogprob> tokens, int most,
                            const TokenText& text) {
  for (const TokenLogprob& token : tokens) {
    if (!out.empty()) out += ',';
    JsonOut json(out);
    if (token.rank == 0) {
      json.null();
      continue;
    }
    const auto entry = [&](TokenId id, float logprob, int rank) {
      json.key(std::to_string(id)).open_object().key("logprob").number(shown_logprob(logprob));
      json.key("rank").number(rank).key("decoded_token").string(utf8_lossy(text(id)));
      json.close_object();
    };
    json.open_object();
    entry(token.id, token.logprob, token.rank);
    for (int i = 0; i < std::min(most, static_cast<int>(token.top.size())); ++i) {
      const auto& [id, logprob] = token.top[static_cast<size_t>(i)];
      if (id != token.id) entry(id, logprob, i + 1);
    }
    json.close_object();
  }
}

void put_logprobs(JsonOut& json, std::string_view entries) {
  json.open_object().key("content").open_list();
  if (!entries.empty()) json.raw(entries);
  json.close_list().key("refusal").null().close_object();
}

std::string_view finish_name(FinishReason reason, int calls_shown) {
  if (reason == FinishReason::kLength) return "length";
  return calls_shown > 0 ? "tool_calls" : "stop";
}

}  // namespace tensorfold::api
