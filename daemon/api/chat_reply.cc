#include "daemon/api/chat_reply.h"

#include "engine/base/check.h"

namespace tensorfold::api {

void ChatReply::add(const OutputDelta& delta) {
  reasoning_ += delta.reasoning;
  content_ += delta.content;
  for (const ToolCallDelta& piece : delta.tool_calls) {
    const auto index = static_cast<size_t>(piece.index);
    TF_CHECK_LE(index, calls_.size());
    if (index == calls_.size()) calls_.emplace_back();
    if (!piece.id.empty()) calls_[index].id = piece.id;
    if (!piece.name.empty()) calls_[index].name = piece.name;
    calls_[index].arguments += piece.arguments;
  }
}

void ChatReply::add_logprobs(std::string_view entries) {
  if (!logprobs_.empty() && !entries.empty()) logprobs_ += ',';
  logprobs_ += entries;
}

std::string ChatReply::render(const ReplyInfo& info, FinishReason reason,
                              const ReplyStats& stats) const {
  const size_t calls_shown = info.hide_calls ? 0 : calls_.size();
  std::string out;
  JsonOut json(out);
  json.open_object().key("id").string(info.id).key("object").string("chat.completion");
  json.key("created").number(info.created_s).key("model").string(info.model);
  if (!info.fingerprint.empty()) json.key("system_fingerprint").string(info.fingerprint);
  json.key("choices").open_list().open_object().key("index").number(0);
  json.key("message").open_object().key("role").string("assistant").key("content");
  content_.empty() ? json.null() : json.string(content_);
  if (!reasoning_.empty()) {
    json.key("reasoning_content").string(reasoning_).key("reasoning").string(reasoning_);
  }
  if (calls_shown > 0) {
    json.key("tool_calls").open_list();
    for (const Call& call : calls_) {
      json.open_object().key("id").string(call.id).key("type").string("function");
      json.key("function").open_object().key("name").string(call.name);
      json.key("arguments").string(call.arguments).close_object().close_object();
    }
    json.close_list();
  }
  json.close_object();
  json.key("logprobs");
  info.logprobs ? put_logprobs(json, logprobs_) : (void)json.null();
  json.key("finish_reason").string(finish_name(reason, static_cast<int>(calls_shown)));
  json.close_object().close_list();
  put_usage(json.key("usage"), stats.usage);
  put_stats(json.key("tensorfold"), stats);
  json.close_object();
  return out;
}

}  // namespace tensorfold::api
