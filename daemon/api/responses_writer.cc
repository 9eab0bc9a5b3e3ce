// See the header.
#include "daemon/api/responses_writer.h"

#include <algorithm>
#include <utility>

#include "daemon/api/chat_writer.h"
#include "daemon/api/random.h"
#include "engine/base/utf8.h"

namespace tensorfold::api {
namespace {

void put_entries(JsonOut& json, std::string_view entries) {
  json.key("logprobs").open_list();
  if (!entries.empty()) json.raw(entries);
  json.close_list();
}

}  // namespace

template <typename Body>
void ResponsesWriter::event(std::string& out, std::string_view type, const Body& body) {
  if (!stream_) return;
  out.append("event: ").append(type).append("\ndata: ");
  JsonOut json(out);
  json.open_object().key("type").string(type).key("sequence_number").number(sequence_++);
  body(json);
  json.close_object();
  out += "\n\n";
}

// ---------------------------------------------------------------- objects

void ResponsesWriter::put_part(JsonOut& json, const Item& item) const {
  json.open_object().key("type");
  json.string(item.kind == Kind::kReasoning ? "reasoning_text" : "output_text");
  json.key("text").string(item.text);
  if (item.kind == Kind::kText) {
    json.key("annotations").open_list().close_list();
    put_entries(json, item.logprobs);
  }
  json.close_object();
}

void ResponsesWriter::put_item(JsonOut& json, const Item& item, bool done) const {
  json.open_object().key("id").string(item.id).key("type");
  json.string(item.kind == Kind::kReasoning ? "reasoning"
              : item.kind == Kind::kText    ? "message"
                                            : "function_call");
  json.key("status").string(!done ? "in_progress" : item.cut ? "incomplete" : "completed");
  if (item.kind == Kind::kCall) {
    json.key("call_id").string(item.call_id).key("name").string(item.name);
    json.key("arguments").string(item.text).close_object();
    return;
  }
  if (item.kind == Kind::kReasoning) {
    json.key("summary").open_list().close_list();
  } else {
    json.key("role").string("assistant");
  }
  json.key("content").open_list();
  if (done) put_part(json, item);
  json.close_list().close_object();
}

void ResponsesWriter::put_request(JsonOut& json) const {
  const auto value = [&](std::string_view name, const Json& v) {
    json.key(name).raw(dump_json_compact(v));
  };
  value("instructions", look_.instructions);
  json.key("max_output_tokens");
  look_.max_output_tokens ? json.number(*look_.max_output_tokens) : json.null();
  json.key("parallel_tool_calls").boolean(look_.parallel);
  json.key("previous_response_id");
  look_.previous.empty() ? json.null() : json.string(look_.previous);
  value("reasoning", look_.reasoning);
  json.key("store").boolean(look_.store).key("temperature").number(look_.temperature);
  json.key("top_logprobs").number(look_.top_logprobs);
  value("text", look_.text);
  value("tool_choice", look_.tool_choice);
  value("tools", look_.tools);
  json.key("top_p").number(look_.top_p).key("truncation").string("disabled");
  json.key("background").boolean(false).key("user").null();
  value("metadata", look_.metadata);
}

void ResponsesWriter::put_response(JsonOut& json, std::string_view status) const {
  json.open_object().key("id").string(info_.id).key("object").string("response");
  json.key("created_at").number(info_.created_s).key("status").string(status);
  json.key("error");
  if (failure_.ok()) {
    json.null();
  } else {
    json.open_object().key("code").string(failure_.reason().empty() ? "server_error"
                                                                    : failure_.reason());
    json.key("message").string(utf8_lossy(failure_.message())).close_object();
  }
  json.key("incomplete_details");
  if (status == "incomplete") {
    json.open_object().key("reason").string("max_output_tokens").close_object();
  } else {
    json.null();
  }
  json.key("model").string(info_.model).key("output").open_list();
  for (const Item& item : items_) put_item(json, item, true);
  json.close_list();
  put_request(json);
  json.key("usage");
  if (!stats_) {
    json.null().close_object();
    return;
  }
  const Usage& usage = stats_->usage;
  json.open_object().key("input_tokens").number(usage.prompt_tokens);
  json.key("input_tokens_details").open_object();
  json.key("cached_tokens").number(usage.cached_tokens).close_object();
  json.key("output_tokens").number(usage.completion_tokens);
  json.key("output_tokens_details").open_object();
  json.key("reasoning_tokens").number(usage.reasoning_tokens).close_object();
  json.key("total_tokens").number(usage.prompt_tokens + usage.completion_tokens).close_object();
  put_stats(json.key("tensorfold"), *stats_);
  json.close_object();
}

// ---------------------------------------------------------------- events

void ResponsesWriter::begin(const ReplyInfo& info, std::string& out) {
  info_ = info;
  for (const char* type : {"response.created", "response.in_progress"}) {
    event(out, type, [&](JsonOut& json) { put_response(json.key("response"), "in_progress"); });
  }
}

void ResponsesWriter::open(Kind kind, const ToolCallDelta* call, std::string& out) {
  close(out);
  Item item{kind, {}, {}, {}, {}, {}};
  item.id = random_id(kind == Kind::kReasoning ? "rs_" : kind == Kind::kText ? "msg_" : "fc_");
  if (call != nullptr) {
    item.call_id = call->id;
    item.name = call->name;
  }
  items_.push_back(std::move(item));
  open_ = true;
  const Item& added = items_.back();
  const size_t index = items_.size() - 1;
  event(out, "response.output_item.added", [&](JsonOut& json) {
    put_item(json.key("output_index").number(index).key("item"), added, false);
  });
  if (kind == Kind::kCall) return;
  event(out, "response.content_part.added", [&](JsonOut& json) {
    json.key("item_id").string(added.id).key("output_index").number(index);
    put_part(json.key("content_index").number(0).key("part"), added);
  });
}

void ResponsesWriter::add(std::string_view text, std::string_view logprobs, std::string& out) {
  Item& item = items_.back();
  item.text += text;
  if (!logprobs.empty()) item.logprobs.append(item.logprobs.empty() ? "" : ",").append(logprobs);
  const char* type = item.kind == Kind::kReasoning ? "response.reasoning_text.delta"
                     : item.kind == Kind::kText    ? "response.output_text.delta"
                                                   : "response.function_call_arguments.delta";
  event(out, type, [&](JsonOut& json) {
    json.key("item_id").string(item.id).key("output_index").number(items_.size() - 1);
    if (item.kind != Kind::kCall) json.key("content_index").number(0);
    json.key("delta").string(text);
    if (item.kind == Kind::kText) put_entries(json, logprobs);
  });
}

void ResponsesWriter::close(std::string& out) {
  if (!open_) return;
  open_ = false;
  const Item& item = items_.back();
  const size_t index = items_.size() - 1;
  const auto place = [&](JsonOut& json) -> JsonOut& {
    json.key("item_id").string(item.id).key("output_index").number(index);
    return json;
  };
  if (item.kind == Kind::kCall) {
    event(out, "response.function_call_arguments.done", [&](JsonOut& json) {
      place(json).key("name").string(item.name).key("arguments").string(item.text);
    });
  } else {
    const bool text = item.kind == Kind::kText;
    event(out, text ? "response.output_text.done" : "response.reasoning_text.done",
          [&](JsonOut& json) {
            place(json).key("content_index").number(0).key("text").string(item.text);
            if (text) put_entries(json, item.logprobs);
          });
    event(out, "response.content_part.done", [&](JsonOut& json) {
      put_part(place(json).key("content_index").number(0).key("part"), item);
    });
  }
  event(out, "response.output_item.done", [&](JsonOut& json) {
    put_item(json.key("output_index").number(index).key("item"), item, true);
  });
}

void ResponsesWriter::piece(const ReplyPiece& p, std::string& out) {
  const auto at = [&](Kind kind) { return open_ && items_.back().kind == kind; };
  if (!p.delta.reasoning.empty()) {
    if (!at(Kind::kReasoning)) open(Kind::kReasoning, nullptr, out);
    add(p.delta.reasoning, {}, out);
  }
  // A step's tokens are listed with the text that it gives; those whose text is held back yet, with
  // what follows; those of reasoning and calls alone are not.
  const bool others = !p.delta.reasoning.empty() || !p.delta.tool_calls.empty();
  if (others && p.delta.content.empty()) {
    pending_logprobs_.clear();
  } else if (look_.logprobs) {
    append_logprobs(pending_logprobs_, p.logprobs, p.text);
  }
  if (!p.delta.content.empty()) {
    if (!at(Kind::kText)) open(Kind::kText, nullptr, out);
    add(p.delta.content, std::exchange(pending_logprobs_, {}), out);
  }
  for (const ToolCallDelta& call : p.delta.tool_calls) {
    if (!call.name.empty()) open(Kind::kCall, &call, out);
    if (!call.arguments.empty()) add(call.arguments, {}, out);
  }
}

void ResponsesWriter::finish(const ChoiceEnd& end, std::string& out) {
  const bool cut = end.reason == FinishReason::kLength;
  if (cut && open_) items_.back().cut = true;
  close(out);
  reason_ = end.reason;
  stats_ = end.stats;
  const std::string_view status = cut ? "incomplete" : "completed";
  event(out, cut ? "response.incomplete" : "response.completed",
        [&](JsonOut& json) { put_response(json.key("response"), status); });
  if (!stream_) {
    JsonOut json(out);
    put_response(json, status);
  }
  if (store_) hand_over();
}

void ResponsesWriter::error(int, const Status& status, std::string& out) {
  failure_ = status;
  if (open_) items_.back().cut = true;
  open_ = false;
  event(out, "response.failed",
        [&](JsonOut& json) { put_response(json.key("response"), "failed"); });
}

void ResponsesWriter::keepalive(int done, int total, std::string& out) {
  append_keepalive(done, total, out);
}

// The conversation as it now is, without this request's instructions.
void ResponsesWriter::hand_over() {
  StoredResponse stored;
  stored.id = info_.id;
  JsonOut json(stored.json);
  put_response(json, *reason_ == FinishReason::kLength ? "incomplete" : "completed");
  stored.messages = std::move(messages_);
  if (look_.has_instructions && !stored.messages.empty()) {
    stored.messages.erase(stored.messages.begin());
  }
  ChatMessage reply;
  reply.role = Role::kAssistant;
  for (const Item& item : items_) {
    if (item.kind == Kind::kReasoning) {
      reply.reasoning = reply.reasoning.value_or("") + item.text;
    } else if (item.kind == Kind::kText) {
      reply.content.push_back({ContentPart::Kind::kText, item.text, {}});
    } else {
      reply.tool_calls.push_back({item.call_id, item.name, Json::string(item.text)});
    }
  }
  stored.messages.push_back(std::move(reply));
  store_(std::move(stored));
}

std::unique_ptr<ReplyWriter> make_responses_writer(bool stream, ResponsesLook look) {
  return std::make_unique<ResponsesWriter>(stream, std::move(look));
}

}  // namespace tensorfold::api
