#include "daemon/api/chat_stream.h"

#include <algorithm>

#include "daemon/api/errors.h"

namespace tensorfold::api {
namespace {

constexpr std::string_view kPrefix = "data: ";
constexpr std::string_view kEnd = "\n\n";

void put_call(JsonOut& json, const ToolCallDelta& piece) {
  json.open_object().key("index").number(piece.index);
  const bool first = !piece.name.empty();
  if (first) json.key("id").string(piece.id).key("type").string("function");
  json.key("function").open_object();
  if (first) json.key("name").string(piece.name);
  json.key("arguments").string(piece.arguments).close_object().close_object();
}

}  // namespace

void ChatStream::open(JsonOut& json) const {
  json.open_object().key("id").string(info_.id).key("object").string("chat.completion.chunk");
  json.key("created").number(info_.created_s).key("model").string(info_.model);
  if (!info_.fingerprint.empty()) json.key("system_fingerprint").string(info_.fingerprint);
}

// With include_usage every chunk but the last one says null.
void ChatStream::close(JsonOut& json) const {
  if (info_.include_usage) json.key("usage").null();
  json.close_object();
}

std::string ChatStream::role() const {
  std::string out(kPrefix);
  JsonOut json(out);
  open(json);
  json.key("choices").open_list().open_object().key("index").number(0);
  json.key("delta").open_object().key("role").string("assistant");
  json.key("content").string("").close_object();
  json.key("finish_reason").null().close_object().close_list();
  close(json);
  return out.append(kEnd);
}

std::string ChatStream::delta(const OutputDelta& delta, std::string_view logprobs) {
  const bool calls = !info_.hide_calls && !delta.tool_calls.empty();
  if (delta.reasoning.empty() && delta.content.empty() && !calls && logprobs.empty()) return "";
  std::string out(kPrefix);
  JsonOut json(out);
  open(json);
  json.key("choices").open_list().open_object().key("index").number(0);
  json.key("delta").open_object();
  if (!delta.reasoning.empty()) {
    json.key("reasoning_content").string(delta.reasoning);
    json.key("reasoning").string(delta.reasoning);
  }
  if (!delta.content.empty()) json.key("content").string(delta.content);
  if (calls) {
    json.key("tool_calls").open_list();
    for (const ToolCallDelta& piece : delta.tool_calls) {
      put_call(json, piece);
      calls_shown_ = std::max(calls_shown_, piece.index + 1);
    }
    json.close_list();
  }
  json.close_object();
  if (info_.logprobs) put_logprobs(json.key("logprobs"), logprobs);
  json.key("finish_reason").null().close_object().close_list();
  close(json);
  return out.append(kEnd);
}

std::string ChatStream::finish(FinishReason reason, const ReplyStats& stats) const {
  std::string out(kPrefix);
  JsonOut json(out);
  open(json);
  json.key("choices").open_list().open_object().key("index").number(0);
  json.key("delta").open_object().close_object();
  json.key("finish_reason").string(finish_name(reason, calls_shown_)).close_object().close_list();
  if (!info_.include_usage) put_usage(json.key("usage"), stats.usage);
  put_stats(json.key("tensorfold"), stats);
  close(json);
  return out.append(kEnd);
}

std::string ChatStream::usage(const ReplyStats& stats) const {
  if (!info_.include_usage) return "";
  std::string out(kPrefix);
  JsonOut json(out);
  open(json);
  json.key("choices").open_list().close_list();
  put_usage(json.key("usage"), stats.usage);
  json.close_object();
  return out.append(kEnd);
}

std::string ChatStream::error(int http_status, const Status& status) {
  return std::string(kPrefix) + error_json(http_status, status) + std::string(kEnd);
}

}  // namespace tensorfold::api
