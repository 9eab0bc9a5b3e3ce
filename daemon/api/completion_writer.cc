// See the header.
#include "daemon/api/completion_writer.h"

#include <algorithm>

#include "daemon/api/chat_writer.h"
#include "daemon/api/errors.h"
#include "engine/base/utf8.h"

namespace tensorfold::api {
namespace {

size_t characters_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// The four lists of the old log-probability shape, each growing.
struct LogprobLists {
  std::string tokens, values, tops, offsets;

  void add(const TokenLogprob& token, const TokenText& text, size_t& offset) {
    const auto next = [](std::string& list) -> JsonOut {
      if (!list.empty()) list += ',';
      return JsonOut(list);
    };
    const std::string shown = utf8_lossy(text(token.id));
    next(tokens).string(shown);
    next(values).number(shown_logprob(token.logprob));
    next(offsets).number(offset);
    offset += characters_of(shown);
    JsonOut top = next(tops);
    top.open_object();
    std::vector<std::string> seen;  // two tokens may look alike: the likelier one stays
    for (const auto& [id, logprob] : token.top) {
      std::string name = utf8_lossy(text(id));
      if (std::find(seen.begin(), seen.end(), name) != seen.end()) continue;
      top.key(name).number(shown_logprob(logprob));
      seen.push_back(std::move(name));
    }
    top.close_object();
  }
  bool empty() const { return tokens.empty(); }
  void put(JsonOut& json) const {
    const auto list = [&](std::string_view name, const std::string& entries) {
      json.key(name).open_list();
      if (!entries.empty()) json.raw(entries);
      json.close_list();
    };
    json.open_object();
    list("tokens", tokens);
    list("token_logprobs", values);
    list("top_logprobs", tops);
    list("text_offset", offsets);
    json.close_object();
  }
};

class CompletionWriter : public ReplyWriter {
 public:
  explicit CompletionWriter(CompletionLook look)
      : look_(std::move(look)), choices_(static_cast<size_t>(look_.choices)) {}
  std::string_view id_prefix() const override { return "cmpl-"; }

 protected:
  struct Choice {
    std::string text;  // of a whole reply
    LogprobLists logprobs;
    size_t offset = 0;  // in characters
    std::vector<TokenId> ids;
    FinishReason reason = FinishReason::kStop;
    ReplyStats stats;
  };

  Choice& at(int choice) { return choices_[static_cast<size_t>(choice)]; }

  void put_head(JsonOut& json) const {
    json.open_object().key("id").string(info_.id).key("object").string("text_completion");
    json.key("created").number(info_.created_s).key("model").string(info_.model);
    if (!info_.fingerprint.empty()) json.key("system_fingerprint").string(info_.fingerprint);
  }

  std::string echo_of(int choice) const {
    if (look_.echo.empty()) return "";
    const auto& echo = look_.echo[static_cast<size_t>(choice)];
    if (const auto* text = std::get_if<std::string>(&echo)) return utf8_lossy(*text);
    std::string bytes;
    for (const TokenId id : std::get<std::vector<TokenId>>(echo)) bytes += info_.text(id);
    return utf8_lossy(bytes);
  }

  void keep_ids(const ReplyPiece& p) {
    if (look_.token_ids)
      at(p.choice).ids.insert(at(p.choice).ids.end(), p.ids.begin(), p.ids.end());
  }

  const std::vector<TokenId>* shown_ids(int choice) {
    return look_.token_ids ? &at(choice).ids : nullptr;
  }

  const CompletionLook look_;
  ReplyInfo info_;
  Usage total_;
  std::vector<Choice> choices_;
};

class CompletionStream final : public CompletionWriter {
 public:
  using CompletionWriter::CompletionWriter;

  void begin(const ReplyInfo& info, std::string& out) override {
    info_ = info;
    head_ = "data: ";
    JsonOut head(head_);
    put_head(head);
    if (look_.echo.empty()) return;
    for (int i = 0; i < look_.choices; ++i) {
      const std::string text = echo_of(i);
      at(i).offset = characters_of(text);
      event(out, [&](JsonOut& json) { put_choice(json, i, text, nullptr, ""); });
    }
  }
  void progress(int done, int total, std::string& out) override {
    event(out, [&](JsonOut& json) {
      json.key("choices").open_list().close_list();
      json.key("prompt_progress").open_object().key("processed").number(done);
      json.key("total").number(total).close_object();
    });
  }
  void piece(const ReplyPiece& p, std::string& out) override {
    keep_ids(p);
    LogprobLists logprobs;
    if (look_.logprobs >= 0) {
      for (const TokenLogprob& t : p.logprobs) logprobs.add(t, p.text, at(p.choice).offset);
    }
    const std::string text = p.delta.reasoning + p.delta.content;
    if (text.empty() && logprobs.empty()) return;
    event(out, [&](JsonOut& json) { put_choice(json, p.choice, text, &logprobs, ""); });
  }
  void finish(const ChoiceEnd& end, std::string& out) override {
    event(out, [&](JsonOut& json) {
      put_choice(json, end.choice, "", nullptr, finish_name(end.reason, 0));
      if (end.total != nullptr && !look_.include_usage) put_usage(json.key("usage"), *end.total);
      put_stats(json.key("tensorfold"), end.stats, shown_ids(end.choice));
    });
    if (end.total != nullptr) total_ = *end.total;
  }
  void end(std::string& out) override {
    if (look_.include_usage) {
      out += head_;
      JsonOut json = JsonOut::continued(out);
      json.key("choices").open_list().close_list();
      put_usage(json.key("usage"), total_);
      json.close_object();
      out += "\n\n";
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
    if (look_.include_usage) json.key("usage").null();
    json.close_object();
    out += "\n\n";
  }
  void put_choice(JsonOut& json, int index, std::string_view text, const LogprobLists* logprobs,
                  std::string_view finish) const {
    json.key("choices").open_list().open_object().key("index").number(index);
    json.key("text").string(text).key("logprobs");
    look_.logprobs >= 0 && logprobs != nullptr ? logprobs->put(json) : (void)json.null();
    json.key("finish_reason");
    finish.empty() ? json.null() : json.string(finish);
    json.close_object().close_list();
  }

  std::string head_;  // what every event begins with
};

class CompletionWhole final : public CompletionWriter {
 public:
  using CompletionWriter::CompletionWriter;

  void begin(const ReplyInfo& info, std::string&) override {
    info_ = info;
    for (int i = 0; i < look_.choices; ++i) {
      at(i).text = echo_of(i);
      at(i).offset = characters_of(at(i).text);
    }
  }
  void progress(int, int, std::string&) override {}
  void keepalive(int, int, std::string&) override {}
  void error(int, const Status&, std::string&) override {}
  void piece(const ReplyPiece& p, std::string&) override {
    Choice& choice = at(p.choice);
    keep_ids(p);
    choice.text += p.delta.reasoning + p.delta.content;
    if (look_.logprobs < 0) return;
    for (const TokenLogprob& t : p.logprobs) choice.logprobs.add(t, p.text, choice.offset);
  }
  void finish(const ChoiceEnd& end, std::string&) override {
    at(end.choice).reason = end.reason;
    at(end.choice).stats = end.stats;
    if (end.total != nullptr) total_ = *end.total;
  }
  void end(std::string& out) override {
    JsonOut json(out);
    put_head(json);
    json.key("choices").open_list();
    for (int i = 0; i < look_.choices; ++i) {
      const Choice& choice = at(i);
      json.open_object().key("index").number(i).key("text").string(choice.text);
      json.key("logprobs");
      look_.logprobs >= 0 ? choice.logprobs.put(json) : (void)json.null();
      json.key("finish_reason").string(finish_name(choice.reason, 0));
      if (look_.choices > 1) put_stats(json.key("tensorfold"), choice.stats, shown_ids(i));
      json.close_object();
    }
    json.close_list();
    put_usage(json.key("usage"), total_);
    put_stats(json.key("tensorfold"), at(0).stats, shown_ids(0));
    json.close_object();
  }
};

}  // namespace

std::unique_ptr<ReplyWriter> make_completion_writer(bool stream, CompletionLook look) {
  if (stream) return std::make_unique<CompletionStream>(std::move(look));
  return std::make_unique<CompletionWhole>(std::move(look));
}

}  // namespace tensorfold::api
