// Rendering of replies: the bytes of a stream, the whole object, and that both say the same.
#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "daemon/api/chat_reply.h"
#include "daemon/api/chat_stream.h"
#include "daemon/api/errors.h"

using namespace tensorfold;
using namespace tensorfold::api;

namespace {

ReplyInfo info_of(bool include_usage = false, bool logprobs = false) {
  ReplyInfo info;
  info.id = "chatcmpl-1";
  info.created_s = 5;
  info.model = "tiny";
  info.include_usage = include_usage;
  info.logprobs = logprobs;
  return info;
}

ReplyStats stats_of() {
  ReplyStats stats;
  stats.usage = {10, 4, 6, 2};
  stats.token_sha = "0123456789ab";
  stats.sampling_seed = static_cast<uint64_t>(-3);
  stats.rounds = 3;
  stats.drafted = 5;
  stats.accepted = 3;
  return stats;
}

// The JSON of one event; checks the framing.
Json event_json(const std::string& event) {
  BOOST_REQUIRE(event.rfind("data: ", 0) == 0);
  BOOST_REQUIRE(event.size() > 8 && event.substr(event.size() - 2) == "\n\n");
  const std::string text = event.substr(6, event.size() - 8);
  BOOST_REQUIRE_MESSAGE(text.find('\n') == std::string::npos, text);
  auto json = parse_json(text);
  BOOST_REQUIRE_MESSAGE(json.ok(), text);
  return *json;
}

const Json& choice_of(const Json& chunk) { return chunk.find("choices")->as_array().at(0); }

std::vector<OutputDelta> sample_deltas() {
  std::vector<OutputDelta> out(6);
  out[0].reasoning = "why\n";
  out[1].reasoning = "so";
  out[2].content = "a \"b\"\n\xF0\x9F\x98\x80";
  out[3].tool_calls = {{0, "call_a", "f", ""}, {0, "", "", "{\"x\": "}};
  out[4].tool_calls = {{0, "", "", "1}"}, {1, "call_b", "g", "{}"}};
  return out;
}

}  // namespace

BOOST_AUTO_TEST_CASE(chunks_are_what_clients_expect) {
  ChatStream stream(info_of());
  const Json role = event_json(stream.role());
  BOOST_TEST(role.find("object")->as_string() == "chat.completion.chunk");
  BOOST_TEST(choice_of(role).find("delta")->find("role")->as_string() == "assistant");
  BOOST_TEST(choice_of(role).find("finish_reason")->is_null());
  OutputDelta delta;
  delta.reasoning = "hm";
  const Json thought = event_json(stream.delta(delta, ""));
  const Json& fields = *choice_of(thought).find("delta");
  BOOST_TEST(fields.find("reasoning_content")->as_string() == "hm");
  BOOST_TEST(fields.find("reasoning")->as_string() == "hm");
  BOOST_TEST(fields.find("content") == nullptr);
  BOOST_TEST(stream.delta(OutputDelta(), "").empty());
  const Json end = event_json(stream.finish(FinishReason::kLength, stats_of()));
  BOOST_TEST(choice_of(end).find("finish_reason")->as_string() == "length");
  BOOST_TEST(end.find("usage")->find("total_tokens")->as_int64().value() == 16);
  BOOST_TEST(end.find("tensorfold")->find("token_sha")->as_string() == "0123456789ab");
  BOOST_TEST(end.find("tensorfold")->find("sampling_seed")->as_string() == "-3");
  BOOST_TEST(stream.usage(stats_of()).empty());
  BOOST_TEST(ChatStream::done() == "data: [DONE]\n\n");
  BOOST_TEST(ChatStream::keepalive()[0] == ':');
}

BOOST_AUTO_TEST_CASE(include_usage_has_its_own_chunk) {
  ChatStream stream(info_of(true));
  BOOST_TEST(event_json(stream.role()).find("usage")->is_null());
  const Json end = event_json(stream.finish(FinishReason::kStop, stats_of()));
  BOOST_TEST(end.find("usage")->is_null());
  BOOST_TEST(end.find("tensorfold") != nullptr);
  const Json usage = event_json(stream.usage(stats_of()));
  BOOST_TEST(usage.find("choices")->as_array().empty());
  const Json& u = *usage.find("usage");
  BOOST_TEST(u.find("prompt_tokens")->as_int64().value() == 10);
  BOOST_TEST(u.find("completion_tokens")->as_int64().value() == 6);
  BOOST_TEST(u.find("prompt_tokens_details")->find("cached_tokens")->as_int64().value() == 4);
  BOOST_TEST(u.find("completion_tokens_details")->find("reasoning_tokens")->as_int64().value() ==
             2);
  BOOST_TEST(u.find("prompt_cache_hit_tokens")->as_int64().value() == 4);
  BOOST_TEST(u.find("prompt_cache_miss_tokens")->as_int64().value() == 6);
}

BOOST_AUTO_TEST_CASE(stream_and_whole_say_the_same) {
  ChatStream stream(info_of());
  ChatReply whole;
  std::string reasoning, content;
  struct Call {
    std::string id, name, arguments;
  };
  std::vector<Call> calls;
  for (const OutputDelta& delta : sample_deltas()) {
    whole.add(delta);
    const std::string event = stream.delta(delta, "");
    if (event.empty()) continue;
    const Json chunk = event_json(event);
    const Json& d = *choice_of(chunk).find("delta");
    if (const Json* r = d.find("reasoning_content")) reasoning += r->as_string();
    if (const Json* c = d.find("content")) content += c->as_string();
    const Json* list = d.find("tool_calls");
    for (const Json& piece : list ? list->as_array() : Json::Array()) {
      const auto index = static_cast<size_t>(piece.find("index")->as_int64().value());
      if (index == calls.size()) {
        calls.push_back(
            {piece.find("id")->as_string(), piece.find("function")->find("name")->as_string(), ""});
        BOOST_TEST(piece.find("type")->as_string() == "function");
      } else {
        BOOST_TEST(piece.find("id") == nullptr);
        BOOST_TEST(piece.find("function")->find("name") == nullptr);
      }
      calls.at(index).arguments += piece.find("function")->find("arguments")->as_string();
    }
  }
  auto parsed = parse_json(whole.render(info_of(), FinishReason::kToolCalls, stats_of()));
  BOOST_REQUIRE(parsed.ok());
  const Json& choice = choice_of(*parsed);
  const Json& message = *choice.find("message");
  BOOST_TEST(message.find("reasoning_content")->as_string() == reasoning);
  BOOST_TEST(message.find("reasoning")->as_string() == reasoning);
  BOOST_TEST(message.find("content")->as_string() == content);
  const Json::Array& list = message.find("tool_calls")->as_array();
  BOOST_REQUIRE(list.size() == calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    BOOST_TEST(list[i].find("id")->as_string() == calls[i].id);
    BOOST_TEST(list[i].find("function")->find("name")->as_string() == calls[i].name);
    BOOST_TEST(list[i].find("function")->find("arguments")->as_string() == calls[i].arguments);
  }
  BOOST_TEST(choice.find("finish_reason")->as_string() == "tool_calls");
  const Json end = event_json(stream.finish(FinishReason::kToolCalls, stats_of()));
  BOOST_TEST(choice_of(end).find("finish_reason")->as_string() == "tool_calls");
}

BOOST_AUTO_TEST_CASE(hidden_calls) {
  ReplyInfo info = info_of();
  info.hide_calls = true;
  ChatStream stream(info);
  ChatReply whole;
  for (const OutputDelta& delta : sample_deltas()) {
    whole.add(delta);
    BOOST_TEST(stream.delta(delta, "").find("tool_calls") == std::string::npos);
  }
  const std::string text = whole.render(info, FinishReason::kToolCalls, stats_of());
  BOOST_TEST(text.find("tool_calls") == std::string::npos);
  BOOST_TEST(text.find("\"finish_reason\":\"stop\"") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(empty_reply_has_null_content) {
  const ChatReply whole;
  const auto parsed = parse_json(whole.render(info_of(), FinishReason::kStop, stats_of()));
  const Json& message = *choice_of(*parsed).find("message");
  BOOST_TEST(message.find("content")->is_null());
  BOOST_TEST(message.find("reasoning_content") == nullptr);
  BOOST_TEST(message.find("tool_calls") == nullptr);
}

BOOST_AUTO_TEST_CASE(logprobs_carry_bytes) {
  const std::vector<TokenLogprob> tokens = {{1, -0.25f, {{1, -0.25f}, {2, -3.0f}}}, {2, -1.0f, {}}};
  std::string entries;
  append_logprobs(entries, tokens,
                  [](TokenId id) { return id == 1 ? std::string("a") : std::string("\xC3"); });
  ChatStream stream(info_of(false, true));
  const Json chunk = event_json(stream.delta(OutputDelta(), entries));
  const Json::Array& list = choice_of(chunk).find("logprobs")->find("content")->as_array();
  BOOST_REQUIRE(list.size() == 2);
  BOOST_TEST(list[0].find("token")->as_string() == "a");
  BOOST_TEST(list[0].find("logprob")->as_double() == -0.25);
  BOOST_TEST(list[0].find("top_logprobs")->as_array().size() == 2);
  BOOST_TEST(list[1].find("token")->as_string() == "\xEF\xBF\xBD");
  BOOST_TEST(list[1].find("bytes")->as_array().at(0).as_int64().value() == 0xC3);
}

BOOST_AUTO_TEST_CASE(errors_have_one_shape) {
  struct Case {
    Status status;
    int http;
    const char* type;
  };
  const Case cases[] = {
      {invalid_argument("m", "p", "c"), 400, "invalid_request_error"},
      {unsupported("m"), 400, "invalid_request_error"},
      {Status(StatusCode::kNotFound, "m"), 404, "invalid_request_error"},
      {Status(StatusCode::kTooMany, "m"), 429, "rate_limit_error"},
      {unavailable("m"), 503, "server_error"},
      {Status(StatusCode::kDeadline, "m"), 503, "server_error"},
      {internal_error("m"), 500, "server_error"},
  };
  for (const Case& c : cases) {
    const http::Response response = error_response(c.status);
    BOOST_TEST(response.status == c.http);
    const auto json = parse_json(response.body);
    BOOST_REQUIRE(json.ok());
    const Json& error = *json->find("error");
    BOOST_TEST(error.find("message")->as_string() == "m");
    BOOST_TEST(error.find("type")->as_string() == c.type);
    BOOST_TEST(error.find("param") != nullptr);
    BOOST_TEST(error.find("code") != nullptr);
    const bool retry = c.http == 429 || c.http == 503;
    BOOST_TEST((response.headers.size() == 1) == retry);
  }
  const Json event = event_json(ChatStream::error(500, internal_error("broken \xff\n")));
  BOOST_TEST(event.find("error")->find("type")->as_string() == "server_error");
}
