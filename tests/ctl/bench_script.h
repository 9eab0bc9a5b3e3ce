// A server of known speed for tests of `tfctl bench`: replies come at scripted times of a clock
// that is each thread's own and moves by script only, so that no figure depends on the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/bench/wire.h"
#include "engine/base/json.h"

namespace tensorfold::ctl::bench {

inline thread_local int64_t script_now_us = 0;  // a new thread begins at 0

inline std::string sse(const std::string& data) { return "data: " + data + "\n\n"; }

// One scripted reply: when its tokens come, counted from the request.
struct Script {
  int64_t start_us = -1;                     // the request's own time; -1: the thread's
  double prefill_tps = 1e9;                  // what the prompt costs
  int64_t wait_us = 0;                       // before that
  int64_t round_us = 10'000;                 // between two events
  std::vector<int64_t> tokens{1};            // of an event, in turn
  std::optional<int64_t> cached_tokens = 0;  // absent: usage says nothing
  int64_t stall_from_us = -1, stall_to_us = -1,
          stall_us = 0;           // rounds that begin there take so long
  size_t text_rounds = SIZE_MAX;  // rounds after these give no text
  std::string text = "w";         // of the first event; the others are "w"
};

class ScriptedServer final : public Wire {
 public:
  // body: the request's JSON. path: "/v1/chat/completions" or "/v1/completions".
  std::function<Script(const Json& body, int64_t prompt_tokens)> script = [](const Json&, int64_t) {
    return Script{};
  };
  std::function<int(int64_t now_us)> status = [](int64_t) { return 200; };
  bool tokenizes = false;
  int64_t tokens_per_word = 2, tokens_around = 9;

  int64_t now_us() override { return script_now_us; }
  void sleep_us(int64_t us) override { script_now_us += us; }

  Result<HttpReply> exchange(const HttpRequest& request, const BodySink& sink) override {
    HttpReply reply;
    reply.status = status(script_now_us);
    reply.sent_us = reply.end_us = script_now_us;
    if (reply.status != 200) {
      reply.body = R"({"error":{"message":"not now"}})";
      return reply;
    }
    if (request.path == "/v1/models") {
      reply.body = R"({"object":"list","data":[{"id":"scripted"}]})";
      return reply;
    }
    const auto body = parse_json(request.body);
    if (!body.ok()) return body.status();
    if (request.path == "/tokenize") return tokenize(*body, std::move(reply));
    return stream(*body, sink, std::move(reply));
  }

  static int64_t words_in(const std::string& text) {
    int64_t words = 0;
    for (size_t i = 0; i < text.size(); ++i)
      words += text[i] != ' ' && (i == 0 || text[i - 1] == ' ');
    return words;
  }

 private:
  HttpReply tokenize(const Json& body, HttpReply reply) const {
    if (!tokenizes) {
      reply.status = 404;
      reply.body = R"({"error":{"message":"no such path"}})";
      return reply;
    }
    reply.body = R"({"tokens":[)";
    const int64_t count = words_in(body.find("prompt")->as_string());
    for (int64_t i = 0; i < count; ++i) reply.body += (i == 0 ? "" : ",") + std::to_string(100 + i);
    reply.body += "]}";
    return reply;
  }

  int64_t prompt_tokens(const Json& body) const {
    const Json* ids = body.find("prompt");
    if (ids != nullptr) return static_cast<int64_t>(ids->as_array().size());
    return tokens_around +
           tokens_per_word *
               words_in(body.find("messages")->as_array()[0].find("content")->as_string());
  }

  static std::string text_event(const Json& body, const std::string& text) {
    std::string quoted;
    append_json_string(quoted, text);
    return sse(body.find("prompt") != nullptr
                   ? R"({"choices":[{"index":0,"text":)" + quoted + "}]}"
                   : R"({"choices":[{"index":0,"delta":{"content":)" + quoted + "}}]}");
  }

  Result<HttpReply> stream(const Json& body, const BodySink& sink, HttpReply reply) const {
    const int64_t prompt = prompt_tokens(body);
    const int64_t most = *body.find("max_tokens")->as_int64();
    const Script one = script(body, prompt);
    if (one.start_us >= 0) script_now_us = reply.sent_us = one.start_us;
    script_now_us +=
        one.wait_us + static_cast<int64_t>(static_cast<double>(prompt) / one.prefill_tps * 1e6);
    std::string pending;
    int64_t sent = 0;
    for (size_t round = 0; sent < most; ++round) {
      if (round > 0) {
        const bool stalls = script_now_us >= one.stall_from_us && script_now_us < one.stall_to_us;
        script_now_us += stalls ? one.stall_us : one.round_us;
      }
      sent = std::min(most, sent + one.tokens[round % one.tokens.size()]);
      if (round >= one.text_rounds) continue;
      // What a read gives need not end where an event does; no event ends later than it was sent.
      pending = text_event(body, round == 0 ? one.text : "w");
      TF_RETURN_IF_ERROR(sink(script_now_us, pending.substr(0, round % pending.size())));
      TF_RETURN_IF_ERROR(sink(script_now_us, pending.substr(round % pending.size())));
    }
    std::string usage = R"({"choices":[{"index":0,"delta":{},"finish_reason":"length"}],"usage":)"
                        R"({"prompt_tokens":)" +
                        std::to_string(prompt) + R"(,"completion_tokens":)" + std::to_string(sent);
    if (one.cached_tokens) {
      usage += R"(,"prompt_tokens_details":{"cached_tokens":)" +
               std::to_string(*one.cached_tokens) + "}";
    }
    TF_RETURN_IF_ERROR(sink(script_now_us, sse(usage + "}}") + sse("[DONE]")));
    reply.end_us = script_now_us;
    return reply;
  }
};

}  // namespace tensorfold::ctl::bench
