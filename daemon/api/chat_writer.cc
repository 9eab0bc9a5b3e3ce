// See the header. Strings that come from the engine's OutputStream are valid UTF-8.
#include "daemon/api/chat_writer.h"

#include <algorithm>
#include <vector>

#include "daemon/api/errors.h"
#include "engine/base/check.h"

namespace tensorfold::api {
namespace {

void put_head(JsonOut& json, const ReplyInfo& info, std::string_view object) {
  json.open_object().key("id").string(info.id).key("object").string(object);
  json.key("created").number(info.created_s).key("model").string(info.model);
  if (!info.fingerprint.empty()) json.key("system_fingerprint").string(info.fingerprint);
}

void put_call(JsonOut& json, const ToolCallDelta& piece) {
  json.open_object().key("index").number(piece.index);
  const bool first = !piece.name.empty();
  if (first) json.key("id").string(piece.id).key("type").string("function");
  json.key("function").open_object();
  if (first) json.key("name").string(piece.name);
  json.key("arguments").string(piece.arguments).close_object().close_object();
}

// ---------------------------------------------------------------- streamed

class ChatStream final : public ReplyWriter {
 public:
  explicit ChatStream(const ChatLook& look)
      : look_(look),
        calls_(static_cast<size_t>(look.choices)),
        ids_(static_cast<size_t>(look.choices)) {}

  std::string_view id_prefix() const override { return "chatcmpl-"; }

  void begin(const ReplyInfo& info, std::string& out) override {
    head_ = "data: ";
    JsonOut head(head_);
    put_head(head, info, "chat.completion.chunk");
    for (int i = 0; i < look_.choices; ++i) {
      event(out, [&](JsonOut& json) {
        open_choice(json, i);
        json.key("delta").open_object().key("role").string("assistant");
        json.key("content").string("").close_object();
        json.key("finish_reason").null().close_object().close_list();
        no_usage(json);
      });
    }
  }

  void progress(int done, int total, std::string& out) override {
    event(out, [&](JsonOut& json) {
      json.key("choices").open_list().close_list();
      json.key("prompt_progress").open_object().key("processed").number(done);
      json.key("total").number(total).close_object();
      no_usage(json);
    });
  }

  void piece(const ReplyPiece& p, std::string& out) override {
    const OutputDelta& delta = p.delta;
    if (look_.token_ids) {
      auto& kept = ids_[static_cast<size_t>(p.choice)];
      kept.insert(kept.end(), p.ids.begin(), p.ids.end());
    }
    if (delta.empty() && (!look_.logprobs || p.logprobs.empty())) return;
    event(out, [&](JsonOut& json) {
      open_choice(json, p.choice);
      json.key("delta").open_object();
      if (!delta.reasoning.empty()) {
        json.key("reasoning_content").string(delta.reasoning);
        json.key("reasoning").string(delta.reasoning);
      }
      if (!delta.content.empty()) json.key("content").string(delta.content);
      if (!delta.tool_calls.empty()) {
        json.key("tool_calls").open_list();
        for (const ToolCallDelta& call : delta.tool_calls) {
          put_call(json, call);
          int& shown = calls_[static_cast<size_t>(p.choice)];
          shown = std::max(shown, call.index + 1);
        }
        json.close_list();
      }
      json.close_object();
      if (look_.logprobs) {
        std::string entries;
        append_logprobs(entries, p.logprobs, p.text);
        put_logprobs(json.key("logprobs"), entries);
      }
      json.key("finish_reason").null().close_object().close_list();
      no_usage(json);
    });
  }

  void finish(const ChoiceEnd& end, std::string& out) override {
    event(out, [&](JsonOut& json) {
      const auto i = static_cast<size_t>(end.choice);
      open_choice(json, end.choice);
      json.key("delta").open_object().close_object();
      json.key("finish_reason").string(finish_name(end.reason, calls_[i]));
      json.close_object().close_list();
      if (end.total != nullptr && !look_.include_usage) put_usage(json.key("usage"), *end.total);
      put_stats(json.key("tensorfold"), end.stats, look_.token_ids ? &ids_[i] : nullptr);
      no_usage(json);
    });
    if (end.total != nullptr) total_ = *end.total;
  }

  void end(std::string& out) override {
    if (look_.include_usage) {
      event(out, [&](JsonOut& json) {
        json.key("choices").open_list().close_list();
        put_usage(json.key("usage"), total_);
      });
    }
    out += kSseDone;
  }

  void error(int http_status, const Status& status, std::string& out) override {
    out += sse_data(error_json(http_status, status));
    out += kSseDone;
  }

  void keepalive(int done, int total, std::string& out) override {
    append_keepalive(done, total, out);
  }

 private:
  template <typename Body>
  void event(std::string& out, const Body& body) {
    out += head_;
    JsonOut json = JsonOut::continued(out);
    body(json);
    json.close_object();
    out += "\n\n";
  }
  static void open_choice(JsonOut& json, int index) {
    json.key("choices").open_list().open_object().key("index").number(index);
  }
  // With include_usage every chunk but the last one says null.
  void no_usage(JsonOut& json) const {
    if (look_.include_usage) json.key("usage").null();
  }

  const ChatLook look_;
  std::string head_;  // what every event begins with
  Usage total_;
  std::vector<int> calls_;                 // shown, of each choice
  std::vector<std::vector<TokenId>> ids_;  // of each choice
};

// ---------------------------------------------------------------- whole

class ChatWhole final : public ReplyWriter {
 public:
  explicit ChatWhole(const ChatLook& look)
      : look_(look), choices_(static_cast<size_t>(look.choices)) {}

  std::string_view id_prefix() const override { return "chatcmpl-"; }
  void begin(const ReplyInfo& info, std::string&) override { info_ = info; }
  void progress(int, int, std::string&) override {}
  void keepalive(int, int, std::string&) override {}
  void error(int, const Status&, std::string&) override {}

  void piece(const ReplyPiece& p, std::string&) override {
    Choice& choice = choices_[static_cast<size_t>(p.choice)];
    choice.text.add(p.delta);
    if (look_.logprobs) append_logprobs(choice.logprobs, p.logprobs, p.text);
    if (look_.token_ids) choice.ids.insert(choice.ids.end(), p.ids.begin(), p.ids.end());
  }

  void prompt_logprobs(int, std::span<const TokenLogprob> tokens, const TokenText& text) override {
    append_prompt_logprobs(prompt_, tokens, look_.prompt_logprobs, text);
  }

  void finish(const ChoiceEnd& end, std::string&) override {
    Choice& choice = choices_[static_cast<size_t>(end.choice)];
    choice.reason = end.reason;
    choice.stats = end.stats;
    if (end.total != nullptr) total_ = *end.total;
  }

  void end(std::string& out) override {
    JsonOut json(out);
    put_head(json, info_, "chat.completion");
    json.key("choices").open_list();
    for (int i = 0; i < look_.choices; ++i) put_choice(json, i);
    json.close_list();
    put_usage(json.key("usage"), total_);
    if (look_.prompt_logprobs >= 0) {
      json.key("prompt_logprobs").open_list();
      if (!prompt_.empty()) json.raw(prompt_);
      json.close_list();
    }
    put_stats(json.key("tensorfold"), choices_[0].stats,
              look_.token_ids ? &choices_[0].ids : nullptr);
    json.close_object();
  }

 private:
  struct Choice {
    ReplyText text;
    std::string logprobs;
    std::vector<TokenId> ids;
    FinishReason reason = FinishReason::kStop;
    ReplyStats stats;
  };

  void put_choice(JsonOut& json, int index) const {
    const Choice& choice = choices_[static_cast<size_t>(index)];
    const ReplyText& text = choice.text;
    json.open_object().key("index").number(index);
    json.key("message").open_object().key("role").string("assistant").key("content");
    text.content.empty() ? json.null() : json.string(text.content);
    if (!text.reasoning.empty()) {
      json.key("reasoning_content").string(text.reasoning);
      json.key("reasoning").string(text.reasoning);
    }
    if (!text.calls.empty()) {
      json.key("tool_calls").open_list();
      for (const ReplyText::Call& call : text.calls) {
        json.open_object().key("id").string(call.id).key("type").string("function");
        json.key("function").open_object().key("name").string(call.name);
        json.key("arguments").string(call.arguments).close_object().close_object();
      }
      json.close_list();
    }
    json.close_object();
    json.key("logprobs");
    look_.logprobs ? put_logprobs(json, choice.logprobs) : (void)json.null();
    json.key("finish_reason");
    json.string(finish_name(choice.reason, static_cast<int>(text.calls.size())));
    if (look_.choices > 1) {
      put_stats(json.key("tensorfold"), choice.stats, look_.token_ids ? &choice.ids : nullptr);
    }
    json.close_object();
  }

  const ChatLook look_;
  ReplyInfo info_;
  Usage total_;
  std::vector<Choice> choices_;
  std::string prompt_;  // entries of prompt_logprobs
};

}  // namespace

std::string sse_data(std::string_view json) {
  std::string out = "data: ";
  out += json;
  return out += "\n\n";
}

void append_keepalive(int done, int total, std::string& out) {
  if (total > 0 && done < total) {
    out += ": keepalive, prefill " + std::to_string(done) + "/" + std::to_string(total) + "\n\n";
  } else {
    out += ": keepalive\n\n";
  }
}

std::unique_ptr<ReplyWriter> make_chat_writer(bool stream, const ChatLook& look) {
  if (stream) return std::make_unique<ChatStream>(look);
  return std::make_unique<ChatWhole>(look);
}

}  // namespace tensorfold::api
