// See the header.
#include "daemon/api/messages_writer.h"

#include "daemon/api/errors.h"

namespace tensorfold::api {
namespace {

void put_messages_usage(JsonOut& json, const Usage& usage) {
  json.open_object();
  json.key("input_tokens").number(usage.prompt_tokens - usage.cached_tokens);
  json.key("cache_creation_input_tokens").number(0);
  json.key("cache_read_input_tokens").number(usage.cached_tokens);
  json.key("output_tokens").number(usage.completion_tokens);
  json.key("output_tokens_details").open_object();
  json.key("thinking_tokens").number(usage.reasoning_tokens).close_object();
  json.close_object();
}

class MessagesWriter : public ReplyWriter {
 public:
  explicit MessagesWriter(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  std::string_view id_prefix() const override { return "msg_"; }
  void progress(int, int, std::string&) override {}

 protected:
  void put_message_head(JsonOut& json) const {
    json.open_object().key("id").string(info_.id).key("type").string("message");
    json.key("role").string("assistant").key("model").string(info_.model);
  }

  // stop_reason and stop_sequence.
  void put_stop(JsonOut& json, const ChoiceEnd& end, int calls) const {
    const std::string_view name = finish_name(end.reason, calls);
    const bool stopped = end.stop_index >= 0 && calls == 0 && name == "stop";
    json.key("stop_reason")
        .string(name == "length"       ? "max_tokens"
                : name == "tool_calls" ? "tool_use"
                : stopped              ? "stop_sequence"
                                       : "end_turn");
    json.key("stop_sequence");
    stopped ? json.string(stops_.at(static_cast<size_t>(end.stop_index))) : json.null();
  }

  ReplyInfo info_;

 private:
  const std::vector<std::string> stops_;
};

// ---------------------------------------------------------------- streamed

class MessagesStream final : public MessagesWriter {
 public:
  using MessagesWriter::MessagesWriter;

  void begin(const ReplyInfo& info, std::string& out) override {
    info_ = info;
    event(out, "message_start", [&](JsonOut& json) {
      put_message_head(json.key("message"));
      json.key("content").open_list().close_list();
      json.key("stop_reason").null().key("stop_sequence").null();
      put_messages_usage(json.key("usage"), {info.prompt_tokens, info.cached_tokens, 0, 0});
      json.close_object();
    });
  }

  void piece(const ReplyPiece& p, std::string& out) override {
    if (!p.delta.reasoning.empty()) {
      if (block_ != Block::kThinking) open_block(Block::kThinking, nullptr, out);
      put_delta(out, "thinking_delta", "thinking", p.delta.reasoning);
    }
    if (!p.delta.content.empty()) {
      if (block_ != Block::kText) open_block(Block::kText, nullptr, out);
      put_delta(out, "text_delta", "text", p.delta.content);
    }
    for (const ToolCallDelta& call : p.delta.tool_calls) {
      if (!call.name.empty()) {
        ++calls_;
        open_block(Block::kCall, &call, out);
      }
      if (!call.arguments.empty()) {
        put_delta(out, "input_json_delta", "partial_json", call.arguments);
      }
    }
  }

  void finish(const ChoiceEnd& end, std::string& out) override {
    close_block(out);
    event(out, "message_delta", [&](JsonOut& json) {
      json.key("delta").open_object();
      put_stop(json, end, calls_);
      json.close_object();
      put_messages_usage(json.key("usage"), end.stats.usage);
      put_stats(json.key("tensorfold"), end.stats);
    });
  }
  void end(std::string& out) override {
    event(out, "message_stop", [](JsonOut&) {});
  }
  void error(int http_status, const Status& status, std::string& out) override {
    out += "event: error\ndata: " + error_json(Dialect::kMessages, http_status, status) + "\n\n";
  }
  void keepalive(int, int, std::string& out) override {
    event(out, "ping", [](JsonOut&) {});
  }

 private:
  enum class Block : unsigned char { kNone, kThinking, kText, kCall };

  template <typename Body>
  static void event(std::string& out, std::string_view type, const Body& body) {
    out.append("event: ").append(type).append("\ndata: ");
    JsonOut json(out);
    json.open_object().key("type").string(type);
    body(json);
    json.close_object();
    out += "\n\n";
  }

  void open_block(Block block, const ToolCallDelta* call, std::string& out) {
    close_block(out);
    block_ = block;
    event(out, "content_block_start", [&](JsonOut& json) {
      json.key("index").number(index_).key("content_block").open_object();
      if (block == Block::kThinking) {
        json.key("type").string("thinking").key("thinking").string("");
        json.key("signature").string("");
      } else if (block == Block::kText) {
        json.key("type").string("text").key("text").string("");
      } else {
        json.key("type").string("tool_use").key("id").string(call->id);
        json.key("name").string(call->name).key("input").open_object().close_object();
      }
      json.close_object();
    });
  }

  void close_block(std::string& out) {
    if (block_ == Block::kNone) return;
    if (block_ == Block::kThinking) put_delta(out, "signature_delta", "signature", "");
    event(out, "content_block_stop", [&](JsonOut& json) { json.key("index").number(index_); });
    block_ = Block::kNone;
    ++index_;
  }

  void put_delta(std::string& out, std::string_view type, std::string_view member,
                 std::string_view text) const {
    event(out, "content_block_delta", [&](JsonOut& json) {
      json.key("index").number(index_).key("delta").open_object().key("type").string(type);
      json.key(member).string(text).close_object();
    });
  }

  Block block_ = Block::kNone;
  int index_ = 0;
  int calls_ = 0;
};

// ---------------------------------------------------------------- whole

class MessagesWhole final : public MessagesWriter {
 public:
  using MessagesWriter::MessagesWriter;

  void begin(const ReplyInfo& info, std::string&) override { info_ = info; }
  void piece(const ReplyPiece& p, std::string&) override { text_.add(p.delta); }
  void error(int, const Status&, std::string&) override {}
  void keepalive(int, int, std::string&) override {}

  void finish(const ChoiceEnd& end, std::string& out) override {
    JsonOut json(out);
    put_message_head(json);
    json.key("content").open_list();
    if (!text_.reasoning.empty()) {
      json.open_object().key("type").string("thinking").key("thinking").string(text_.reasoning);
      json.key("signature").string("").close_object();
    }
    if (!text_.content.empty()) {
      json.open_object().key("type").string("text").key("text").string(text_.content);
      json.close_object();
    }
    for (const ReplyText::Call& call : text_.calls) {
      json.open_object().key("type").string("tool_use").key("id").string(call.id);
      json.key("name").string(call.name).key("input").raw(object_text(call.arguments));
      json.close_object();
    }
    json.close_list();
    put_stop(json, end, static_cast<int>(text_.calls.size()));
    put_messages_usage(json.key("usage"), end.stats.usage);
    put_stats(json.key("tensorfold"), end.stats);
    json.close_object();
  }
  void end(std::string&) override {}

 private:
  // "input" must be an object: arguments that were cut short are one string in it.
  static std::string object_text(const std::string& arguments) {
    const auto parsed = parse_json(arguments);
    if (parsed.ok() && parsed->is_object()) return arguments;
    return dump_json_compact(Json::object({{"arguments", Json::string(arguments)}}));
  }

  ReplyText text_;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_messages_writer(bool stream, std::vector<std::string> stops) {
  if (stream) return std::make_unique<MessagesStream>(std::move(stops));
  return std::make_unique<MessagesWhole>(std::move(stops));
}

}  // namespace tensorfold::api
