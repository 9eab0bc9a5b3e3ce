// A reply that is played into a writer, and what came of it: events, objects, places in them.
#pragma once

#include <boost/test/unit_test.hpp>
#include <span>
#include <string>
#include <vector>

#include "daemon/api/reply_writer.h"
#include "engine/base/json.h"

namespace tensorfold::api {

inline ReplyInfo info_of() {
  ReplyInfo info;
  info.id = "reply-1";
  info.created_s = 5;
  info.model = "tiny";
  info.prompt_tokens = 10;
  info.cached_tokens = 4;
  info.text = [](TokenId id) { return std::string(1, static_cast<char>('A' + id)); };
  return info;
}

inline ReplyStats stats_of() {
  ReplyStats stats;
  stats.usage = {10, 4, 6, 2};
  stats.token_sha = "0123456789ab";
  stats.sampling_seed = static_cast<uint64_t>(-3);
  stats.rounds = 3;
  stats.drafted = 5;
  stats.accepted = 3;
  return stats;
}

struct Event {
  std::string name, data;
  Json json;  // null for [DONE]
};

// Events of a stream; checks the framing: every event is one "data:" line, with "event:" before it
// or without.
inline std::vector<Event> events_of(const std::string& bytes) {
  std::vector<Event> out;
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t end = bytes.find("\n\n", at);
    BOOST_REQUIRE(end != std::string::npos);
    std::string text = bytes.substr(at, end - at);
    at = end + 2;
    if (text[0] == ':') continue;
    Event event;
    if (text.rfind("event: ", 0) == 0) {
      const size_t line = text.find('\n');
      event.name = text.substr(7, line - 7);
      text = text.substr(line + 1);
    }
    BOOST_REQUIRE_MESSAGE(text.rfind("data: ", 0) == 0, text);
    event.data = text.substr(6);
    BOOST_REQUIRE_MESSAGE(event.data.find('\n') == std::string::npos, text);
    if (event.data != "[DONE]") {
      auto json = parse_json(event.data);
      BOOST_REQUIRE_MESSAGE(json.ok(), text);
      event.json = *json;
      if (!event.name.empty()) BOOST_TEST(event.json.find("type")->as_string() == event.name);
    }
    out.push_back(std::move(event));
  }
  return out;
}

inline const Json& choice_of(const Json& chunk) { return chunk.find("choices")->as_array().at(0); }

inline std::string text_at(const Json& json, std::initializer_list<const char*> path) {
  const Json* at = &json;
  for (const char* name : path) {
    at = at->find(name);
    BOOST_REQUIRE_MESSAGE(at != nullptr, name);
  }
  return at->is_int() ? std::to_string(*at->as_int64()) : at->is_null() ? "null" : at->as_string();
}

inline std::vector<OutputDelta> sample_deltas() {
  std::vector<OutputDelta> out(6);
  out[0].reasoning = "why\n";
  out[1].reasoning = "so";
  out[2].content = "a \"b\"\n\xF0\x9F\x98\x80";
  out[3].tool_calls = {{0, "call_a", "f", ""}, {0, "", "", "{\"x\": "}};
  out[4].tool_calls = {{0, "", "", "1}"}, {1, "call_b", "g", "{}"}};
  return out;
}

// Plays a reply into a writer and gives all its bytes.
struct Play {
  std::vector<OutputDelta> deltas = sample_deltas();
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob> prompt;  // in two pieces
  FinishReason reason = FinishReason::kToolCalls;
  int choices = 1;
  int stop_index = -1;

  std::string operator()(ReplyWriter& writer) const {
    std::string out;
    const ReplyInfo info = info_of();
    const ReplyStats stats = stats_of();
    writer.begin(info, out);
    for (int c = 0; c < choices; ++c) {
      const auto half = std::span(prompt).first(prompt.size() / 2);
      if (!prompt.empty()) writer.prompt_logprobs(c, half, info.text);
      if (!prompt.empty())
        writer.prompt_logprobs(c, std::span(prompt).subspan(half.size()), info.text);
      for (const OutputDelta& delta : deltas) writer.piece({c, delta, {}, {}, info.text}, out);
      if (!logprobs.empty()) writer.piece({c, OutputDelta(), {}, logprobs, info.text}, out);
      const Usage total = {10, 4, 6 * choices, 2 * choices};
      writer.finish({c, reason, stats, c + 1 == choices ? &total : nullptr, stop_index}, out);
    }
    writer.end(out);
    return out;
  }
};

inline Json whole_of(ReplyWriter& writer, const Play& play) {
  const std::string text = play(writer);
  auto json = parse_json(text);
  BOOST_REQUIRE_MESSAGE(json.ok(), text);
  return *json;
}

}  // namespace tensorfold::api
