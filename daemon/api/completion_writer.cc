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

  // `first`: of the prompt, it follows nothing and has no log-probability.
  void add(const TokenLogprob& token, const TokenText& text, size_t& offset, bool first = false) {
    const auto next = [](std::string& list) -> JsonOut {
      if (!list.empty()) list += ',';
      return JsonOut(list);
    };
    const std::string bytes = text(token.id);
    next(tokens).string(utf8_lossy(bytes));
    next(offsets).number(offset);
    offset += characters_of(bytes);
    if (first) {
      next(values).null();
      next(tops).null();
      return;
    }
    next(values).number(shown_logprob(token.logprob));
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
  // `before`: those of an echoed prompt, or null.
  void put(JsonOut& json, const LogprobLists* before = nullptr) const {
    const auto list = [&](std::string_view name, std::string LogprobLists::*entries) {
      json.key(name).open_list();
      const bool echoed = before != nullptr && !(before->*entries).empty();
      if (echoed) json.raw(before->*entries);
      if (!(this->*entries).empty()) json.raw(this->*entries);
      json.close_list();
    };
    json.open_object();
    list("tokens", &LogprobLists::tokens);
    list("token_logprobs", &LogprobLists::values);
    list("top_logprobs", &LogprobLists::tops);
    list("text_offset", &LogprobLists::offsets);
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
    size_t offset = 0;   // in characters
    std::string prompt;  // entries of prompt_logprobs
    LogprobLists echo;   // of the prompt's tokens
    size_t echo_offset = 0;
    bool echoed = false;  // in a stream
    std::vector<TokenId> ids;
    FinishReason reason = FinishReason::kStop;
    ReplyStats stats;
  };

  Choice& at(int choice) { return choices_[static_cast<size_t>(choice)]; }
  // The choice that has what is said of the prompt.
  Choice& first_of_prompt(int choice) { return at(choice - choice % look_.n); }
  bool echoes_logprobs() const { return !look_.echo.empty() && look_.logprobs >= 0; }

  void keep_prompt(int index, std::span<const TokenLogprob> tokens, const TokenText& text) {
    Choice& choice = at(index);
    if (look_.prompt_logprobs >= 0)
      append_prompt_logprobs(choice.prompt, tokens, look_.prompt_logprobs, text);
    if (!echoes_logprobs()) return;
    for (TokenLogprob token : tokens) {
      token.top.resize(std::min(token.top.size(), static_cast<size_t>(look_.logprobs)));
      choice.echo.add(token, text, choice.echo_offset, token.rank == 0);
      const bool of_text =
          std::holds_alternative<std::string>(look_.echo[static_cast<size_t>(index)]);
      if (token.rank == 0 && look_.add_bos && of_text) choice.echo_offset = 0;  // not in the text
    }
  }

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
    for (int i = 0; i < look_.choices && !look_.echo.empty() && !echoes_logprobs(); ++i)
      put_echo(i, out);
  }
  void prompt_logprobs(int choice, std::span<const TokenLogprob> tokens,
                       const TokenText& text) override {
    keep_prompt(choice, tokens, text);
  }
  void progress(int done, int total, std::string& out) override {
    event(out, [&](JsonOut& json) {
      json.key("choices").open_list().close_list();
      json.key("prompt_progress").open_object().key("processed").number(done);
      json.key("total").number(total).close_object();
    });
  }
  void piece(const ReplyPiece& p, std::string& out) override {
    echo_scored(p.choice, out);
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
    echo_scored(end.choice, out);
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
  void put_echo(int i, std::string& out) {
    const std::string text = echo_of(i);
    at(i).offset = characters_of(text);
    event(out, [&](JsonOut& json) {
      put_choice(json, i, text, echoes_logprobs() ? &at(i).echo : nullptr, "");
    });
  }
  // With log-probabilities the echo comes when the prompt is computed: before the reply's first
  // word, or its end.
  void echo_scored(int i, std::string& out) {
    if (!echoes_logprobs() || at(i).echoed) return;
    put_echo(i, out);
    at(i).echoed = true;
    at(i).echo = {};
  }

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
  void prompt_logprobs(int choice, std::span<const TokenLogprob> tokens,
                       const TokenText& text) override {
    keep_prompt(choice, tokens, text);
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
      const Choice& first = first_of_prompt(i);
      look_.logprobs >= 0 ? choice.logprobs.put(json, &first.echo) : (void)json.null();
      json.key("finish_reason").string(finish_name(choice.reason, 0));
      if (look_.prompt_logprobs >= 0) {
        json.key("prompt_logprobs").open_list();
        if (!first.prompt.empty()) json.raw(first.prompt);
        json.close_list();
      }
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
