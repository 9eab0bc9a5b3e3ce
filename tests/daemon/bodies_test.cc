// The bodies of completions, messages and responses: what becomes of their conversations, where
// errors are said to be, and the bounded store of responses.
#include "daemon/api/bodies.h"

#include <boost/test/unit_test.hpp>
#include <string>

#include "daemon/api/responses_writer.h"

using namespace tensorfold;
using namespace tensorfold::api;

namespace {

ReplyOrder order(ReadBody read, const std::string& body) {
  auto made = read(body, ChatDefaults());
  BOOST_REQUIRE_MESSAGE(made.ok(), body << ": " << made.status().message());
  return std::move(made).value();
}

std::string param(ReadBody read, const std::string& body) {
  const auto made = read(body, ChatDefaults());
  BOOST_REQUIRE_MESSAGE(!made.ok(), body);
  BOOST_TEST((made.status().code() == StatusCode::kInvalidArgument));
  return made.status().param();
}

// "user:a|tool(c1):x|assistant[why]:b+f({...})"
std::string conversation(const ReplyOrder& order) {
  std::string out;
  for (const ChatMessage& m : order.prompts[0].prompt.messages) {
    if (!out.empty()) out += "|";
    out += m.role == Role::kSystem ? "system"
           : m.role == Role::kUser ? "user"
           : m.role == Role::kTool ? "tool(" + m.tool_call_id + ")"
                                   : "assistant";
    if (m.reasoning) out += "[" + *m.reasoning + "]";
    out += ":";
    for (size_t i = 0; i < m.content.size(); ++i) {
      out += (i > 0 && m.content_is_list ? "/" : "") + m.content[i].text;
    }
    for (const ToolCall& call : m.tool_calls) {
      out += "+" + call.name + "(" + call.id + "," + dump_json_compact(call.arguments) + ")";
    }
  }
  return out;
}

}  // namespace

// ---------------------------------------------------------------- messages

BOOST_AUTO_TEST_CASE(turns_of_messages) {
  const auto body = [](const std::string& turns) {
    return R"({"max_tokens":5,"system":[{"type":"text","text":"s1"},{"type":"text","text":"s2"}],)"
           R"("messages":[)" +
           turns + "]}";
  };
  BOOST_TEST(conversation(order(read_messages_order, body(R"({"role":"user","content":"a"})"))) ==
             "system:s1/s2|user:a");
  const std::string loop = R"({"role":"user","content":[{"type":"text","text":"a"},
      {"type":"text","text":"b","cache_control":{"type":"ephemeral"}}]},
    {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"x"},
      {"type":"redacted_thinking","data":"zz"},{"type":"text","text":"c"},
      {"type":"tool_use","id":"c1","name":"f","input":{"x":1}},
      {"type":"tool_use","id":"c2","name":"g","input":{}}]},
    {"role":"user","content":[{"type":"text","text":"before"},
      {"type":"tool_result","tool_use_id":"c2","content":"r2"},
      {"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"r1"}],
       "is_error":true},
      {"type":"text","text":"after"}]})";
  const ReplyOrder made = order(read_messages_order, body(loop));
  BOOST_TEST(conversation(made) ==
             "system:s1/s2|user:a/b|assistant[t]:c+f(c1,{\"x\":1})+g(c2,{})|user:before|tool(c2):r2"
             "|tool(c1):r1|user:after");
  BOOST_TEST(!made.prompts[0].prompt.continue_final);
  BOOST_TEST(!made.prompts[0].prompt.thinking.enabled);
  // A final assistant turn is gone on with.
  const ReplyOrder half =
      order(read_messages_order,
            R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"The"}]})");
  BOOST_TEST(half.prompts[0].prompt.continue_final);
}

BOOST_AUTO_TEST_CASE(errors_of_messages_are_where_they_stand) {
  const std::string say = R"("messages":[{"role":"user","content":"a"}])";
  const auto at = [&](const std::string& members) {
    return param(read_messages_order, "{" + say + "," + members + "}");
  };
  BOOST_TEST(at(R"("tools":[{"name":"a b","input_schema":{}}])") == "tools[0].name");
  BOOST_TEST(at(R"("tools":[{"name":"f","input_schema":[]}])") == "tools[0].input_schema");
  BOOST_TEST(at(R"("tools":[{"name":"f","x":1}])") == "tools[0].x");
  BOOST_TEST(at(R"("tool_choice":{"type":"sometimes"})") == "tool_choice.type");
  BOOST_TEST(at(R"("stop_sequences":"x")") == "stop_sequences");
  BOOST_TEST(at(R"("stop_sequences":["x",""])") == "stop_sequences[1]");
  BOOST_TEST(at(R"("output_config":{"effort":"huge"})") == "output_config.effort");
  BOOST_TEST(at(R"("output_config":{"format":{"type":"xml"}})") == "output_config.format.type");
  BOOST_TEST(at(R"("mcp_servers":[{}])") == "mcp_servers");
  BOOST_TEST(at(R"("container":"c")") == "container");
  const auto turn = [](const std::string& content) {
    return param(read_messages_order,
                 R"({"messages":[{"role":"user","content":)" + content + "}]}");
  };
  BOOST_TEST(turn("5") == "messages[0].content");
  BOOST_TEST(turn(R"([{"type":"image"}])") == "messages[0].content[0]");
  BOOST_TEST(turn(R"([{"type":"tool_use","id":"c","name":"f"}])") == "messages[0].content[0]");
  BOOST_TEST(param(read_messages_order,
                   R"({"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"c",
                   "name":"f","input":5}]}]})") == "messages[0].content[0].input");
  BOOST_TEST(turn(R"([{"type":"text","txt":"a"}])") == "messages[0].content[0].txt");
  BOOST_TEST(turn(R"([{"type":"tool_result"}])") == "messages[0].content[0].tool_use_id");
  BOOST_TEST(turn(R"([{"type":"tool_result","tool_use_id":"c","content":[{"type":"image"}]}])") ==
             "messages[0].content[0].content[0]");
}

// ---------------------------------------------------------------- responses

BOOST_AUTO_TEST_CASE(items_of_responses_become_turns) {
  const ReplyOrder made = order(read_responses_order, R"({"instructions":"i","input":[
    {"role":"developer","content":"d"},
    {"role":"user","content":[{"type":"input_text","text":"a"}]},
    {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"t"}]},
    {"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]},
    {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\":1}"},
    {"type":"function_call","call_id":"c2","name":"g","arguments":"{}"},
    {"type":"function_call_output","call_id":"c1","output":"r1"},
    {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"r2"}]},
    {"type":"reasoning","summary":[{"type":"summary_text","text":"only a summary"}]},
    {"type":"message","role":"assistant","content":"c"},
    {"type":"message","role":"assistant","content":"d"},
    {"role":"user","content":"e"}]})");
  BOOST_TEST(
      conversation(made) ==
      "system:i|system:d|user:a|assistant[t]:b+f(c1,\"{\\\"x\\\":1}\")+g(c2,\"{}\")|tool(c1):r1"
      "|tool(c2):r2|assistant[only a summary]:c|assistant:d|user:e");
}

BOOST_AUTO_TEST_CASE(errors_of_responses_are_where_they_stand) {
  const auto at = [](const std::string& members) {
    return param(read_responses_order, R"({"input":"a",)" + members + "}");
  };
  BOOST_TEST(at(R"("tools":[{"type":"function","name":"f","parameters":5}])") ==
             "tools[0].parameters");
  BOOST_TEST(at(R"("tools":[{"type":"custom","name":"f"}])") == "tools[0].type");
  BOOST_TEST(at(R"("text":{"verbosity":"low"})") == "text.verbosity");
  BOOST_TEST(at(R"("reasoning":{"effort":"huge"})") == "reasoning.effort");
  BOOST_TEST(at(R"("max_output_tokens":0)") == "max_output_tokens");
  BOOST_TEST(at(R"("stream_options":{"include_usage":true})") == "stream_options.include_usage");
  const auto item = [](const std::string& text) {
    return param(read_responses_order, R"({"input":[)" + text + "]}");
  };
  BOOST_TEST(item(R"({"type":"function_call_output","output":"x"})") == "input[0].call_id");
  BOOST_TEST(item(R"({"type":"function_call","call_id":"c","name":"a b"})") == "input[0].name");
  BOOST_TEST(item(R"({"role":"user"})") == "input[0].content");
  BOOST_TEST(item("5") == "input[0]");
}

// ---------------------------------------------------------------- the store

namespace {

StoredResponse stored(const std::string& id, size_t bytes, const std::string& label = "") {
  StoredResponse out;
  out.id = id;
  out.label = label;
  out.json = std::string(bytes, 'x');
  return out;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_store_forgets_the_oldest) {
  ResponseStore store;
  for (size_t i = 0; i < kStoredResponsesMax; ++i) store.put(stored(std::to_string(i), 10));
  BOOST_TEST(store.size() == kStoredResponsesMax);
  BOOST_TEST(store.find("0", "") != nullptr);
  store.put(stored("one more", 10));
  BOOST_TEST(store.size() == kStoredResponsesMax);
  BOOST_TEST(store.find("0", "") == nullptr);
  BOOST_TEST(store.find("1", "") != nullptr);
  // Bytes: four that fill it, then one more; and one that never fits.
  ResponseStore bytes;
  for (int i = 0; i < 4; ++i) bytes.put(stored(std::to_string(i), kStoredBytesMax / 4 - 2000));
  BOOST_TEST(bytes.size() == 4U);
  bytes.put(stored("4", 50'000));
  BOOST_TEST(bytes.find("0", "") == nullptr);
  BOOST_TEST(bytes.find("1", "") != nullptr);
  bytes.put(stored("5", kStoredBytesMax));
  BOOST_TEST(bytes.find("5", "") == nullptr);
  BOOST_TEST(bytes.size() == 4U);
  for (const char* id : {"1", "2", "3", "4"}) BOOST_TEST(bytes.erase(id, ""));
  BOOST_TEST(bytes.bytes() == 0U);
}

BOOST_AUTO_TEST_CASE(stored_responses_are_their_keys) {
  ResponseStore store;
  store.put(stored("r", 10, "alice"));
  BOOST_TEST(store.find("r", "bob") == nullptr);
  BOOST_TEST(!store.erase("r", "bob"));
  ReplyOrder next = order(read_responses_order, R"({"input":"a","previous_response_id":"r"})");
  BOOST_TEST(store.attach(next, "bob").param() == "previous_response_id");
  BOOST_TEST(store.attach(next, "alice").ok());
}

BOOST_AUTO_TEST_CASE(a_response_goes_on_with_what_was_said) {
  ResponseStore store;
  ReplyOrder first = order(read_responses_order, R"({"input":"a","instructions":"i"})");
  BOOST_REQUIRE(store.attach(first, "k").ok());
  ReplyInfo info;
  info.id = "resp_1";
  std::string out;
  first.writer->begin(info, out);
  OutputDelta delta;
  delta.reasoning = "t";
  delta.content = "b";
  delta.tool_calls = {{0, "c1", "f", "{}"}};
  first.writer->piece({0, delta, {}, {}, info.text}, out);
  const ReplyStats stats;
  const Usage total;
  first.writer->finish({0, FinishReason::kStop, stats, &total}, out);
  ReplyOrder second = order(read_responses_order,
                            R"({"input":[{"type":"function_call_output","call_id":"c1",
    "output":"r"}],"previous_response_id":"resp_1","instructions":"j"})");
  BOOST_REQUIRE(store.attach(second, "k").ok());
  BOOST_TEST(conversation(second) == "system:j|user:a|assistant[t]:b+f(c1,\"{}\")|tool(c1):r");
  // The stored turn holds a call, and no tools are given now.
  BOOST_TEST((second.parse_calls && second.hide_calls && second.prompts[0].tool_calls_banned));
  BOOST_TEST((!first.parse_calls && !first.prompts[0].tool_calls_banned));
  ReplyOrder unkept = order(read_responses_order, R"({"input":"a","store":false})");
  BOOST_REQUIRE(store.attach(unkept, "k").ok());
  info.id = "resp_2";
  unkept.writer->begin(info, out);
  unkept.writer->finish({0, FinishReason::kStop, stats, &total}, out);
  BOOST_TEST(store.find("resp_2", "k") == nullptr);
}

BOOST_AUTO_TEST_CASE(calls_that_nobody_takes_are_banned) {
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  const std::string plain = R"("messages":[{"role":"user","content":"x"}])";
  const std::string called =
      R"("messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[)"
      R"({"id":"c","function":{"name":"f","arguments":"{}"}}]},)"
      R"({"role":"tool","tool_call_id":"c","content":"y"}])";
  const auto banned = [](const std::string& members) {
    const ReplyOrder made = order(read_chat_order, "{" + members + "}");
    return made.prompts[0].tool_calls_banned;
  };
  BOOST_TEST(!banned(plain));
  BOOST_TEST(!banned(plain + tools));
  BOOST_TEST(banned(plain + tools + R"(,"tool_choice":"none")"));
  BOOST_TEST(banned(called));
  BOOST_TEST(!banned(called + tools));
  BOOST_TEST(banned(called + tools + R"(,"tool_choice":"none")"));
}

// ---------------------------------------------------------------- completions

BOOST_AUTO_TEST_CASE(prompts_of_completions) {
  const ReplyOrder made =
      order(read_completion_order, R"({"prompt":["a",[1,2],"b"],"n":2,"temperature":0.5})");
  BOOST_REQUIRE(made.prompts.size() == 3U);
  BOOST_TEST(made.prompts[0].prompt.raw->text == "a");
  BOOST_TEST((*made.prompts[1].prompt.ids == std::vector<TokenId>{1, 2}));
  for (const Request& r : made.prompts) BOOST_TEST(r.sampling.temperature == 0.5);
  std::string many = R"({"prompt":["x")";
  for (int i = 1; i < kReplyChoicesMax; ++i) many += ",\"x\"";
  BOOST_TEST(order(read_completion_order, many + "]}").prompts.size() ==
             static_cast<size_t>(kReplyChoicesMax));
  BOOST_TEST(param(read_completion_order, many + ",\"x\"]}") == "prompt");
  BOOST_TEST(param(read_completion_order, many + "],\"n\":2}") == "n");
}
