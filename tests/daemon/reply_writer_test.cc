// Rendering of replies, in every API: the bytes of a stream, the whole object, and that both say
// the same.
#include <boost/test/unit_test.hpp>
#include <memory>
#include <string>
#include <vector>

#include "daemon/api/chat_writer.h"
#include "daemon/api/completion_writer.h"
#include "daemon/api/errors.h"
#include "daemon/api/messages_writer.h"
#include "tests/daemon/written_reply.h"

using namespace tensorfold;
using namespace tensorfold::api;

// ---------------------------------------------------------------- chat

BOOST_AUTO_TEST_CASE(chunks_are_what_clients_expect) {
  Play play;
  play.deltas.resize(2);
  play.reason = FinishReason::kLength;
  const auto events = events_of(play(*make_chat_writer(true, {})));
  BOOST_REQUIRE(events.size() == 5);
  const Json& role = events[0].json;
  BOOST_TEST(text_at(role, {"object"}) == "chat.completion.chunk");
  BOOST_TEST(text_at(choice_of(role), {"delta", "role"}) == "assistant");
  BOOST_TEST(text_at(choice_of(role), {"finish_reason"}) == "null");
  const Json& fields = *choice_of(events[1].json).find("delta");
  BOOST_TEST(text_at(fields, {"reasoning_content"}) == "why\n");
  BOOST_TEST(text_at(fields, {"reasoning"}) == "why\n");
  BOOST_TEST(fields.find("content") == nullptr);
  const Json& end = events[3].json;
  BOOST_TEST(text_at(choice_of(end), {"finish_reason"}) == "length");
  BOOST_TEST(text_at(end, {"usage", "total_tokens"}) == "16");
  BOOST_TEST(text_at(end, {"tensorfold", "token_sha"}) == "0123456789ab");
  BOOST_TEST(text_at(end, {"tensorfold", "sampling_seed"}) == "-3");
  BOOST_TEST(events[4].data == "[DONE]");
}

BOOST_AUTO_TEST_CASE(include_usage_has_its_own_chunk) {
  const auto events = events_of(Play()(*make_chat_writer(true, {1, true, false, false})));
  BOOST_REQUIRE(events.size() > 3);
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    BOOST_TEST(events[i].json.find("usage")->is_null());
    BOOST_TEST(!events[i].json.find("choices")->as_array().empty());
  }
  const Json& last = events[events.size() - 2].json;
  BOOST_TEST(last.find("choices")->as_array().empty());
  BOOST_TEST(text_at(last, {"usage", "prompt_tokens"}) == "10");
  BOOST_TEST(text_at(last, {"usage", "completion_tokens"}) == "6");
  BOOST_TEST(text_at(last, {"usage", "prompt_tokens_details", "cached_tokens"}) == "4");
  BOOST_TEST(text_at(last, {"usage", "completion_tokens_details", "reasoning_tokens"}) == "2");
  BOOST_TEST(text_at(last, {"usage", "prompt_cache_hit_tokens"}) == "4");
  BOOST_TEST(text_at(last, {"usage", "prompt_cache_miss_tokens"}) == "6");
}

BOOST_AUTO_TEST_CASE(stream_and_whole_say_the_same) {
  std::string reasoning, content;
  std::vector<ReplyText::Call> calls;
  std::string finish;
  for (const Event& event : events_of(Play()(*make_chat_writer(true, {})))) {
    if (event.json.is_null()) continue;
    const Json& d = *choice_of(event.json).find("delta");
    if (const Json* r = d.find("reasoning_content")) reasoning += r->as_string();
    if (const Json* c = d.find("content")) content += c->as_string();
    finish = text_at(choice_of(event.json), {"finish_reason"});
    const Json* list = d.find("tool_calls");
    for (const Json& piece : list ? list->as_array() : Json::Array()) {
      const auto index = static_cast<size_t>(piece.find("index")->as_int64().value());
      if (index == calls.size()) {
        calls.push_back({text_at(piece, {"id"}), text_at(piece, {"function", "name"}), ""});
        BOOST_TEST(text_at(piece, {"type"}) == "function");
      } else {  // later pieces carry nothing that could overwrite the first
        BOOST_TEST(piece.find("id") == nullptr);
        BOOST_TEST(piece.find("type") == nullptr);
        BOOST_TEST(piece.find("function")->find("name") == nullptr);
      }
      calls.at(index).arguments += text_at(piece, {"function", "arguments"});
    }
  }
  const Json reply = whole_of(*make_chat_writer(false, {}), Play());
  const Json& choice = choice_of(reply);
  const Json& message = *choice.find("message");
  BOOST_TEST(text_at(message, {"reasoning_content"}) == reasoning);
  BOOST_TEST(text_at(message, {"reasoning"}) == reasoning);
  BOOST_TEST(text_at(message, {"content"}) == content);
  const Json::Array& list = message.find("tool_calls")->as_array();
  BOOST_REQUIRE(list.size() == calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    BOOST_TEST(text_at(list[i], {"id"}) == calls[i].id);
    BOOST_TEST(text_at(list[i], {"function", "name"}) == calls[i].name);
    BOOST_TEST(text_at(list[i], {"function", "arguments"}) == calls[i].arguments);
  }
  BOOST_TEST(text_at(choice, {"finish_reason"}) == "tool_calls");
  BOOST_TEST(finish == "tool_calls");
}

BOOST_AUTO_TEST_CASE(several_choices_keep_apart) {
  Play play;
  play.choices = 3;
  const Json reply = whole_of(*make_chat_writer(false, {3, false, false, false}), play);
  BOOST_REQUIRE(reply.find("choices")->as_array().size() == 3U);
  for (size_t i = 0; i < 3; ++i) {
    const Json& choice = reply.find("choices")->as_array()[i];
    BOOST_TEST(text_at(choice, {"index"}) == std::to_string(i));
    BOOST_TEST(text_at(choice, {"message", "reasoning_content"}) == "why\nso");
    BOOST_TEST(choice.find("message")->find("tool_calls")->as_array().size() == 2U);
    BOOST_TEST(text_at(choice, {"tensorfold", "token_sha"}) == "0123456789ab");
  }
  BOOST_TEST(text_at(reply, {"usage", "completion_tokens"}) == "18");
  int roles = 0, ends = 0, usages = 0;
  for (const Event& e : events_of(play(*make_chat_writer(true, {3, false, false, false})))) {
    if (e.json.is_null()) continue;
    roles += choice_of(e.json).find("delta")->find("role") != nullptr;
    ends += !choice_of(e.json).find("finish_reason")->is_null();
    if (const Json* usage = e.json.find("usage")) {
      ++usages;
      BOOST_TEST(text_at(*usage, {"completion_tokens"}) == "18");
      BOOST_TEST(text_at(choice_of(e.json), {"index"}) == "2");  // the last to end
    }
  }
  BOOST_TEST((roles == 3 && ends == 3 && usages == 1));
}

BOOST_AUTO_TEST_CASE(empty_reply_has_null_content) {
  Play play;
  play.deltas.clear();
  play.reason = FinishReason::kStop;
  const Json reply = whole_of(*make_chat_writer(false, {}), play);
  const Json& message = *choice_of(reply).find("message");
  BOOST_TEST(message.find("content")->is_null());
  BOOST_TEST(message.find("reasoning_content") == nullptr);
  BOOST_TEST(message.find("tool_calls") == nullptr);
}

BOOST_AUTO_TEST_CASE(logprobs_carry_bytes_and_no_infinity) {
  Play play;
  play.deltas.clear();
  constexpr float kInfinite = -std::numeric_limits<float>::infinity();
  play.logprobs = {{1, -0.25f, {{1, -0.25f}, {2, -3.0f}}}, {0x82, -1.0f, {{3, kInfinite}}}};
  for (const bool stream : {false, true}) {
    const auto writer = make_chat_writer(stream, {1, false, true, true});
    const std::string bytes = play(*writer);
    const Json object = stream ? events_of(bytes).at(1).json : *parse_json(bytes);
    const Json::Array& list = choice_of(object).find("logprobs")->find("content")->as_array();
    BOOST_REQUIRE(list.size() == 2);
    BOOST_TEST(text_at(list[0], {"token"}) == "B");
    BOOST_TEST(list[0].find("logprob")->as_double() == -0.25);
    BOOST_TEST(list[0].find("top_logprobs")->as_array().size() == 2);
    BOOST_TEST(text_at(list[1], {"token"}) == "\xEF\xBF\xBD");
    BOOST_TEST(list[1].find("bytes")->as_array().at(0).as_int64().value() == 0xC3);
    const Json& other = list[1].find("top_logprobs")->as_array().at(0);
    BOOST_TEST(other.find("logprob")->as_double() == kNoLogprob);
  }
}

BOOST_AUTO_TEST_CASE(silent_streams_say_how_far_they_are) {
  for (const auto& [done, total, text] : {std::tuple{0, 0, ": keepalive\n\n"},
                                          {5, 10, ": keepalive, prefill 5/10\n\n"},
                                          {10, 10, ": keepalive\n\n"}}) {
    std::string out;
    make_chat_writer(true, {})->keepalive(done, total, out);
    BOOST_TEST(out == text);
  }
  std::string out;
  const auto writer = make_chat_writer(true, {});
  writer->begin(info_of(), out);
  out.clear();
  writer->progress(4, 10, out);
  const Json chunk = events_of(out).at(0).json;
  BOOST_TEST(chunk.find("choices")->as_array().empty());
  BOOST_TEST(text_at(chunk, {"prompt_progress", "processed"}) == "4");
  BOOST_TEST(text_at(chunk, {"prompt_progress", "total"}) == "10");
}

// ---------------------------------------------------------------- completions

BOOST_AUTO_TEST_CASE(completions_whole_and_streamed) {
  Play play;
  play.deltas.resize(3);
  play.choices = 2;
  play.reason = FinishReason::kStop;
  play.logprobs = {{1, -0.5f, {{1, -0.5f}, {2, -2.0f}}}, {2, -1.0f, {}}};
  CompletionLook look;
  look.choices = 2;
  look.logprobs = 2;
  look.echo = {std::string("pre "), std::vector<TokenId>{0, 1}};
  const std::string said = "why\nsoa \"b\"\n\xF0\x9F\x98\x80";
  const Json reply = whole_of(*make_completion_writer(false, look), play);
  BOOST_TEST(text_at(reply, {"object"}) == "text_completion");
  const Json::Array& choices = reply.find("choices")->as_array();
  BOOST_REQUIRE(choices.size() == 2U);
  BOOST_TEST(text_at(choices[0], {"text"}) == "pre " + said);
  BOOST_TEST(text_at(choices[1], {"text"}) == "AB" + said);
  BOOST_TEST(text_at(choices[1], {"finish_reason"}) == "stop");
  const Json& logprobs = *choices[0].find("logprobs");
  BOOST_TEST(dump_json_compact(*logprobs.find("tokens")) == R"(["B","C"])");
  BOOST_TEST(dump_json_compact(*logprobs.find("token_logprobs")) == "[-0.5,-1]");
  BOOST_TEST(dump_json_compact(*logprobs.find("text_offset")) == "[4,5]");
  BOOST_TEST(dump_json_compact(*logprobs.find("top_logprobs")) == R"([{"B":-0.5,"C":-2},{}])");
  std::string text[2], finish[2];
  for (const Event& e : events_of(play(*make_completion_writer(true, look)))) {
    if (e.json.is_null()) continue;
    const Json& choice = choice_of(e.json);
    const auto i = static_cast<size_t>(choice.find("index")->as_int64().value());
    text[i] += text_at(choice, {"text"});
    finish[i] = text_at(choice, {"finish_reason"});
  }
  for (size_t i = 0; i < 2; ++i) {
    BOOST_TEST(text[i] == text_at(choices[i], {"text"}));
    BOOST_TEST(finish[i] == "stop");
  }
}

// ---------------------------------------------------------------- messages

BOOST_AUTO_TEST_CASE(messages_events_come_in_order) {
  const auto events = events_of(Play()(*make_messages_writer(true, {})));
  std::string order, thinking, text;
  std::vector<std::string> inputs;
  int open = -1;
  for (const Event& e : events) {
    order += e.name +
             (e.name == "content_block_delta"   ? ":" + text_at(e.json, {"delta", "type"})
              : e.name == "content_block_start" ? ":" + text_at(e.json, {"content_block", "type"})
                                                : "") +
             " ";
    if (e.name.rfind("content_block", 0) != 0) continue;
    const int index = static_cast<int>(*e.json.find("index")->as_int64());
    if (e.name == "content_block_start") {
      BOOST_TEST(index == open + 1);
      open = index;
      if (text_at(e.json, {"content_block", "type"}) == "tool_use") inputs.emplace_back();
    }
    BOOST_TEST(index == open);
    const Json* delta = e.json.find("delta");
    if (delta == nullptr) continue;
    if (const Json* t = delta->find("thinking")) thinking += t->as_string();
    if (const Json* t = delta->find("text")) text += t->as_string();
    if (const Json* t = delta->find("partial_json")) inputs.back() += t->as_string();
  }
  BOOST_TEST(order ==
             "message_start content_block_start:thinking content_block_delta:thinking_delta "
             "content_block_delta:thinking_delta content_block_delta:signature_delta "
             "content_block_stop content_block_start:text content_block_delta:text_delta "
             "content_block_stop content_block_start:tool_use "
             "content_block_delta:input_json_delta content_block_delta:input_json_delta "
             "content_block_stop content_block_start:tool_use "
             "content_block_delta:input_json_delta content_block_stop message_delta "
             "message_stop ");
  BOOST_TEST(thinking == "why\nso");
  BOOST_TEST(text == "a \"b\"\n\xF0\x9F\x98\x80");
  BOOST_TEST((inputs == std::vector<std::string>{"{\"x\": 1}", "{}"}));
  BOOST_TEST(text_at(events[0].json, {"message", "usage", "input_tokens"}) == "6");
  BOOST_TEST(text_at(events[0].json, {"message", "usage", "cache_read_input_tokens"}) == "4");
  const Json& end = events[events.size() - 2].json;
  BOOST_TEST(text_at(end, {"delta", "stop_reason"}) == "tool_use");
  BOOST_TEST(text_at(end, {"usage", "output_tokens"}) == "6");
}

BOOST_AUTO_TEST_CASE(messages_whole) {
  const Json reply = whole_of(*make_messages_writer(false, {}), Play());
  BOOST_TEST(text_at(reply, {"type"}) == "message");
  const Json::Array& blocks = reply.find("content")->as_array();
  BOOST_REQUIRE(blocks.size() == 4U);
  BOOST_TEST(text_at(blocks[0], {"thinking"}) == "why\nso");
  BOOST_TEST(text_at(blocks[0], {"signature"}).empty());
  BOOST_TEST(text_at(blocks[1], {"text"}) == "a \"b\"\n\xF0\x9F\x98\x80");
  BOOST_TEST(text_at(blocks[2], {"input", "x"}) == "1");
  BOOST_TEST(text_at(blocks[3], {"name"}) == "g");
  BOOST_TEST(text_at(reply, {"stop_reason"}) == "tool_use");
  // Arguments that were cut short are still an object.
  Play cut;
  cut.deltas = {{}};
  cut.deltas[0].tool_calls = {{0, "call_a", "f", "{\"x\": \"un"}};
  cut.reason = FinishReason::kLength;
  const Json half = whole_of(*make_messages_writer(false, {}), cut);
  BOOST_TEST(text_at(half, {"stop_reason"}) == "max_tokens");
  BOOST_TEST(text_at(half.find("content")->as_array().at(0), {"input", "arguments"}) ==
             "{\"x\": \"un");
}

BOOST_AUTO_TEST_CASE(messages_name_the_stop_sequence) {
  for (const bool stream : {false, true}) {
    for (const int index : {-1, 1}) {
      Play play;
      play.deltas.resize(3);
      play.reason = FinishReason::kStop;
      play.stop_index = index;
      const std::string bytes = play(*make_messages_writer(stream, {"one", "two"}));
      const auto events = stream ? events_of(bytes) : std::vector<Event>();
      const Json end = stream ? *events[events.size() - 2].json.find("delta") : *parse_json(bytes);
      BOOST_TEST(text_at(end, {"stop_reason"}) == (index < 0 ? "end_turn" : "stop_sequence"));
      BOOST_TEST(text_at(end, {"stop_sequence"}) == (index < 0 ? "null" : "two"));
    }
  }
}

BOOST_AUTO_TEST_CASE(messages_errors_have_their_own_envelope) {
  struct Case {
    Status status;
    int http;
    const char* type;
  };
  const Case cases[] = {
      {invalid_argument("no", "p"), 400, "invalid_request_error"},
      {Status(StatusCode::kNotFound, "m"), 404, "not_found_error"},
      {Status(StatusCode::kTooMany, "m"), 429, "rate_limit_error"},
      {unavailable("m"), 503, "overloaded_error"},
      {internal_error("m \xff"), 500, "api_error"},
  };
  for (const Case& c : cases) {
    const http::Response response = error_response(Dialect::kMessages, c.status);
    BOOST_TEST(response.status == c.http);
    const auto json = parse_json(response.body);
    BOOST_REQUIRE(json.ok());
    BOOST_TEST(text_at(*json, {"type"}) == "error");
    BOOST_TEST(text_at(*json, {"error", "type"}) == c.type);
    std::string out;
    make_messages_writer(true, {})->error(c.http, c.status, out);
    const auto events = events_of(out);
    BOOST_REQUIRE(events.size() == 1U);
    BOOST_TEST(events[0].name == "error");
    BOOST_TEST(text_at(events[0].json, {"error", "type"}) == c.type);
  }
  // The field's path is in the message, because the envelope has no place for it.
  BOOST_TEST(error_response(Dialect::kMessages, cases[0].status).body.find("p: no") !=
             std::string::npos);
}

// ---------------------------------------------------------------- errors

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
  std::string out;
  make_chat_writer(true, {})->error(500, internal_error("broken \xff\n"), out);
  const auto events = events_of(out);
  BOOST_REQUIRE(events.size() == 2);
  BOOST_TEST(events[0].json.find("error")->find("type")->as_string() == "server_error");
  BOOST_TEST(events[1].data == "[DONE]");
}
