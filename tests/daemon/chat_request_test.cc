// The translation of chat requests: every field, every refusal by the exact name of its field.
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <sstream>
#include <string>

#include "daemon/api/api.h"
#include "daemon/api/chat_request.h"
#include "daemon/api/errors.h"
#include "daemon/api/reply_order.h"

using namespace tensorfold;
using namespace tensorfold::api;

namespace {

const std::string kHello = R"("messages":[{"role":"user","content":"hi"}])";

Result<ChatCall> parse_with(const std::string& members) {
  return parse_chat("{" + kHello + (members.empty() ? "" : "," + members) + "}", ChatDefaults());
}

ChatCall good(const std::string& members) {
  auto call = parse_with(members);
  BOOST_REQUIRE_MESSAGE(call.ok(), members << ": " << call.status().message());
  return std::move(call).value();
}

}  // namespace

BOOST_AUTO_TEST_CASE(defaults) {
  const ChatCall call = good("");
  BOOST_TEST(call.request.sampling.temperature == 1.0);
  BOOST_TEST(call.request.sampling.top_p == 0.95);
  BOOST_TEST(!call.request.max_tokens.has_value());
  BOOST_TEST(!call.request.prompt.thinking.enabled);
  BOOST_TEST(call.request.draft);
  BOOST_TEST(call.request.parallel_tool_calls);
  BOOST_TEST(!call.stream);
  BOOST_TEST(!call.seed_given);
  BOOST_TEST(call.request.top_logprobs == -1);
}

BOOST_AUTO_TEST_CASE(fields_reach_the_request) {
  const ChatCall call = good(R"("temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.05,"seed":-3,
    "max_tokens":7,"stop":["a","b"],"presence_penalty":1,"frequency_penalty":-1,
    "repetition_penalty":1.1,"logit_bias":{"12":-100,"3":1.5},"logprobs":true,"top_logprobs":5,
    "draft":false,"priority":"background","ignore_eos":true,"parallel_tool_calls":false,
    "stream":true,"stream_options":{"include_usage":true},"model":"m","cache_salt":"s")");
  const SamplingParams& s = call.request.sampling;
  BOOST_TEST(s.temperature == 0.5);
  BOOST_TEST(s.top_p == 0.9);
  BOOST_TEST(s.top_k == 40);
  BOOST_TEST(s.min_p == 0.05);
  BOOST_TEST(s.seed == static_cast<uint64_t>(-3));
  BOOST_TEST(call.seed_given);
  BOOST_TEST(*call.request.max_tokens == 7);
  BOOST_TEST(call.request.stop.size() == 2);
  BOOST_TEST(s.presence_penalty == 1.0);
  BOOST_TEST(s.frequency_penalty == -1.0);
  BOOST_TEST(s.repetition_penalty == 1.1);
  BOOST_REQUIRE(s.logit_bias.size() == 2);
  BOOST_TEST(s.logit_bias[0].first == 12);
  BOOST_TEST(s.logit_bias[1].second == 1.5f);
  BOOST_TEST(call.request.top_logprobs == 5);
  BOOST_TEST(!call.request.draft);
  BOOST_TEST(call.request.background);
  BOOST_TEST(call.request.ignore_eos);
  BOOST_TEST(!call.request.parallel_tool_calls);
  BOOST_TEST(call.stream);
  BOOST_TEST(call.include_usage);
  BOOST_TEST(call.model == "m");
  BOOST_TEST(call.request.cache_salt == "s");
  BOOST_TEST(good(R"("logprobs":true)").request.top_logprobs == 0);
  BOOST_TEST(good(R"("top_k":-1)").request.sampling.top_k == 0);
  BOOST_TEST(*good(R"("max_completion_tokens":9)").request.max_tokens == 9);
  BOOST_TEST(*good(R"("max_completion_tokens":9,"max_tokens":9)").request.max_tokens == 9);
  BOOST_TEST(good(R"("stop":"x")").request.stop.size() == 1);
}

BOOST_AUTO_TEST_CASE(fields_that_other_servers_have) {
  const ChatCall call = good(R"("n":3,"min_tokens":4,"max_tokens":4,"allowed_token_ids":[5,0],
    "return_token_ids":true,"stream":true,"return_progress":true,"priority":2,
    "skip_special_tokens":true,"include_stop_str_in_output":false,"use_beam_search":false,
    "echo":false,"stop_token_ids":[],"add_generation_prompt":true,
    "continue_final_message":false)");
  BOOST_TEST(call.n == 3);
  BOOST_TEST(call.request.min_tokens == 4);
  BOOST_TEST(call.request.allowed_tokens.size() == 2U);
  BOOST_TEST((call.token_ids && call.progress && call.request.background));
  BOOST_TEST(!call.request.prompt.continue_final);
  // A prompt alone.
  const ChatCall prompt = good(R"("max_tokens":0)");
  BOOST_TEST(prompt.prefill_only);
  BOOST_TEST(*prompt.request.max_tokens == 0);
  const auto order = read_chat_order("{" + kHello + R"(,"n":16,"stream":true})", ChatDefaults());
  BOOST_REQUIRE(order.ok());
  BOOST_TEST((order->n == 16 && order->stream && order->prompts.size() == 1U && order->writer));
}

BOOST_AUTO_TEST_CASE(a_final_assistant_message_is_gone_on_with_when_asked) {
  const auto parse = [](const std::string& last, const std::string& members) {
    return parse_chat(
        R"({"messages":[{"role":"user","content":"hi"},)" + last + "]" + members + "}",
        ChatDefaults());
  };
  const std::string half = R"({"role":"assistant","content":"The ans"})";
  BOOST_TEST(parse(half, "").status().param() == "messages[1]");
  for (const char* header : {"", R"(,"add_generation_prompt":false)"}) {
    const auto call = parse(half, std::string(R"(,"continue_final_message":true)") + header);
    BOOST_REQUIRE_MESSAGE(call.ok(), call.status().message());
    BOOST_TEST(call->request.prompt.continue_final);
  }
  const auto calls =
      parse(R"({"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f"}}]})",
            R"(,"continue_final_message":true)");
  BOOST_TEST(calls.status().param() == "messages[1].tool_calls");
}

BOOST_AUTO_TEST_CASE(null_is_absent_for_every_field) {
  for (const ChatField& field : chat_fields()) {
    if (field.name == "messages") continue;
    good("\"" + std::string(field.name) + "\":null");
  }
}

BOOST_AUTO_TEST_CASE(ignored_fields_are_taken_and_refused_ones_named) {
  for (const ChatField& field : chat_fields()) {
    const std::string name(field.name);
    if (field.use == FieldUse::kIgnored) good("\"" + name + "\":{\"a\":1}");
    if (field.use != FieldUse::kRefused) continue;
    const auto call = parse_with("\"" + name + "\":{\"a\":1}");
    BOOST_REQUIRE_MESSAGE(!call.ok(), name);
    BOOST_TEST(call.status().param() == name);
    BOOST_TEST(http_status(call.status()) == 400);
  }
}

namespace {

struct MemberCase {
  const char* members;
  const char* param;
};
const MemberCase kBadMembers[] = {
    {R"("temperature":2.1)", "temperature"},
    {R"("temperature":-0.1)", "temperature"},
    {R"("temperature":"1")", "temperature"},
    {R"("temperature":true)", "temperature"},
    {R"("top_p":0)", "top_p"},
    {R"("top_p":1.01)", "top_p"},
    {R"("top_k":1.0)", "top_k"},
    {R"("top_k":-2)", "top_k"},
    {R"("min_p":1.5)", "min_p"},
    {R"("seed":1.5)", "seed"},
    {R"("seed":9223372036854775808)", "seed"},
    {R"("seed":"7")", "seed"},
    {R"("max_tokens":-1)", "max_tokens"},
    {R"("max_tokens":1048577)", "max_tokens"},
    {R"("max_tokens":"5")", "max_tokens"},
    {R"("max_completion_tokens":0)", "max_completion_tokens"},
    {R"("max_tokens":5,"max_completion_tokens":6)", "max_completion_tokens"},
    {R"("n":17)", "n"},
    {R"("n":0)", "n"},
    {R"("n":513)", "n"},
    {R"("n":"2")", "n"},
    {R"("min_tokens":-1)", "min_tokens"},
    {R"("min_tokens":9,"max_tokens":8)", "min_tokens"},
    {R"("allowed_token_ids":[])", "allowed_token_ids"},
    {R"("allowed_token_ids":[1,-2])", "allowed_token_ids[1]"},
    {R"("allowed_token_ids":[1.0])", "allowed_token_ids[0]"},
    {R"("continue_final_message":true)", "continue_final_message"},
    {R"("add_generation_prompt":false)", "add_generation_prompt"},
    {R"("return_progress":true)", "return_progress"},
    {R"("skip_special_tokens":false)", "skip_special_tokens"},
    {R"("include_stop_str_in_output":true)", "include_stop_str_in_output"},
    {R"("echo":true)", "echo"},
    {R"("stop_token_ids":[1])", "stop_token_ids"},
    {R"("options":{"num_ctx":32768})", "options"},
    {R"("mirostat":2)", "mirostat"},
    {R"("temperature":1e400)", "temperature"},
    {R"("stop":5)", "stop"},
    {R"("stop":"")", "stop"},
    {R"("stop":["a",""])", "stop[1]"},
    {R"("stop":["a",7])", "stop[1]"},
    {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])",
     "stop"},
    {R"("stream":"yes")", "stream"},
    {R"("stream":1)", "stream"},
    {R"("stream_options":{"include_usage":true})", "stream_options"},
    {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
    {R"("stream":true,"stream_options":{"chunk":1})", "stream_options.chunk"},
    {R"("logprobs":5)", "logprobs"},
    {R"("top_logprobs":3)", "top_logprobs"},
    {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
    {R"("logit_bias":{"x":1})", "logit_bias.x"},
    {R"("logit_bias":{"-1":1})", "logit_bias.-1"},
    {R"("logit_bias":{"5":101})", "logit_bias.5"},
    {R"("logit_bias":[1])", "logit_bias"},
    {R"("presence_penalty":2.5)", "presence_penalty"},
    {R"("frequency_penalty":-2.5)", "frequency_penalty"},
    {R"("repetition_penalty":0)", "repetition_penalty"},
    {R"("reasoning_effort":"extreme")", "reasoning_effort"},
    {R"("reasoning_effort":0)", "reasoning_effort"},
    {R"("reasoning_effort":101)", "reasoning_effort"},
    {R"("reasoning_effort":7.5)", "reasoning_effort"},
    {R"("reasoning_effort":true)", "reasoning_effort"},
    {R"("thinking":"on")", "thinking"},
    {R"("thinking":{"type":"maybe"})", "thinking.type"},
    {R"("thinking":{"kind":"enabled"})", "thinking.kind"},
    {R"("thinking_budget":0)", "thinking_budget"},
    {R"("chat_template_kwargs":{"foo":1})", "chat_template_kwargs.foo"},
    {R"("chat_template_kwargs":{"thinking":"yes"})", "chat_template_kwargs.thinking"},
    {R"("logit_bias":{"05":1})", "logit_bias.05"},
    {R"("verbosity":"low")", "verbosity"},
    {R"("chat_template_kwargs":{"thinking_mode":"deep"})", "chat_template_kwargs.thinking_mode"},
    {R"("chat_template_kwargs":{"drop_thinking":1})", "chat_template_kwargs.drop_thinking"},
    {R"("chat_template_kwargs":{"reasoning_effort":"x"})", "chat_template_kwargs.reasoning_effort"},
    {R"("priority":"high")", "priority"},
    {R"("priority":-3)", "priority"},
    {R"("priority":1.5)", "priority"},
    {R"("draft":0)", "draft"},
    {R"("ignore_eos":"true")", "ignore_eos"},
    {R"("store":true)", "store"},
    {R"("modalities":["text","audio"])", "modalities"},
    {R"("response_format":"text")", "response_format"},
    {R"("tool_choice":"required")", "tool_choice"},
    {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice"},
    {R"("tool_choice":"some")", "tool_choice"},
    {R"("tools":{})", "tools"},
    {R"("tools":[5])", "tools[0]"},
    {R"("tools":[{"type":"retrieval"}])", "tools[0].type"},
    {R"("tools":[{"type":"function"}])", "tools[0].function"},
    {R"("tools":[{"type":"function","function":{}}])", "tools[0].function.name"},
    {R"("tools":[{"type":"function","function":{"name":"a\"b"}}])", "tools[0].function.name"},
    {R"("tools":[{"type":"function","function":{"name":""}}])", "tools[0].function.name"},
    {R"("tools":[{"type":"function","function":{"name":"f","strict":1}}])",
     "tools[0].function.strict"},
    {R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])",
     "tools[0].function.parameters"},
    {R"("tools":[{"type":"function","function":{"name":"f"}},)"
     R"({"type":"function","function":{"name":"f"}}])",
     "tools[1].function.name"},
    {R"("model":7)", "model"},
    {R"("cache_salt":7)", "cache_salt"},
    {R"("nonsense":1)", "nonsense"},
    {R"("Temperature":1)", "Temperature"},
};

}  // namespace

BOOST_AUTO_TEST_CASE(bad_members_are_named) {
  for (const MemberCase& c : kBadMembers) {
    const auto call = parse_with(c.members);
    BOOST_REQUIRE_MESSAGE(!call.ok(), c.members);
    BOOST_TEST(call.status().param() == c.param, c.members << ": " << call.status().message());
    BOOST_TEST(http_status(call.status()) == 400);
    const std::string& message = call.status().message();
    const std::string first = std::string(c.param).substr(0, std::string(c.param).find('.'));
    BOOST_TEST(message.find(first) != std::string::npos, message);
  }
}

namespace {

struct MessageCase {
  const char* messages;
  const char* param;
  const char* code;
};
const MessageCase kBadMessages[] = {
    {R"([])", "messages", ""},
    {R"({})", "messages", ""},
    {R"("hi")", "messages", ""},
    {R"([5])", "messages[0]", ""},
    {R"([{}])", "messages[0].role", ""},
    {R"([{"role":"robot","content":"x"}])", "messages[0].role", ""},
    {R"([{"role":"function","name":"f","content":"x"}])", "messages[0].role", ""},
    {R"([{"role":3,"content":"x"}])", "messages[0].role", ""},
    {R"([{"role":"user","content":5}])", "messages[0].content", ""},
    {R"([{"role":"user","content":{"type":"text"}}])", "messages[0].content", ""},
    {R"([{"role":"user","content":["x"]}])", "messages[0].content[0]", ""},
    {R"([{"role":"user","content":[{"text":"x"}]}])", "messages[0].content[0].type", ""},
    {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text", ""},
    {R"([{"role":"user","content":[{"type":"text","text":null}]}])", "messages[0].content[0].text",
     ""},
    {R"([{"role":"user","content":[{"type":"text","text":"a"},)"
     R"({"type":"image_url","image_url":{"url":"data:,"}}]}])",
     "messages[0].content[1]", "unsupported_content"},
    {R"([{"role":"system","content":"s"},)"
     R"({"role":"user","content":[{"type":"image","source":{}}]}])",
     "messages[1].content[0]", "unsupported_content"},
    {R"([{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}])",
     "messages[0].content[0]", "unsupported_content"},
    {R"([{"role":"user","content":"x","mood":"good"}])", "messages[0].mood", ""},
    {R"([{"role":"user","content":"x","name":5}])", "messages[0].name", ""},
    {R"([{"role":"user","content":"x","tool_calls":[{"function":{"name":"f"}}]}])",
     "messages[0].tool_calls", ""},
    {R"([{"role":"assistant","tool_calls":[{"function":{}}]},{"role":"user","content":"x"}])",
     "messages[0].tool_calls[0].function.name", ""},
    {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":5}}]},)"
     R"({"role":"user","content":"x"}])",
     "messages[0].tool_calls[0].function.arguments", ""},
    {R"([{"role":"assistant","function_call":{"name":"f"}},{"role":"user","content":"x"}])",
     "messages[0].function_call", ""},
    {R"([{"role":"assistant","refusal":"no"},{"role":"user","content":"x"}])",
     "messages[0].refusal", ""},
    {R"([{"role":"user","content":"x"},{"role":"assistant","content":"y"}])", "messages[1]", ""},
    {R"([{"role":"system","content":"x"}])", "messages", ""},
};

}  // namespace

BOOST_AUTO_TEST_CASE(bad_messages_are_named) {
  for (const MessageCase& c : kBadMessages) {
    const auto call = parse_chat("{\"messages\":" + std::string(c.messages) + "}", ChatDefaults());
    BOOST_REQUIRE_MESSAGE(!call.ok(), c.messages);
    BOOST_TEST(call.status().param() == c.param, c.messages << ": " << call.status().message());
    BOOST_TEST(call.status().reason() == c.code);
    BOOST_TEST(http_status(call.status()) == 400);
  }
}

BOOST_AUTO_TEST_CASE(bad_bodies) {
  const std::string deep = "{\"messages\":" + std::string(100'000, '[');
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("nope"),
        std::string("{\"messages\":[]} x"), std::string("{}"), std::string("\xff\xfe"), deep,
        std::string("{\"a\":\"\xed\xa0\x80\"}"), std::string("{\"a\":01}")}) {
    const auto call = parse_chat(body, ChatDefaults());
    BOOST_TEST(!call.ok());
    BOOST_TEST(http_status(call.status()) == 400);
  }
}

BOOST_AUTO_TEST_CASE(messages_are_translated) {
  const auto call = parse_chat(R"({"messages":[
    {"role":"developer","content":"rules"},
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"bob"},
    {"role":"assistant","content":null,"reasoning_content":"why","refusal":null,"annotations":[],
     "tool_calls":[{"id":"c1","type":"function","index":0,
       "function":{"name":"f","arguments":"{\"x\": 1.0}"}}]},
    {"role":"tool","tool_call_id":"c1","content":null},
    {"role":"assistant","content":"","reasoning":"again","tool_calls":null},
    {"role":"user","content":"go"}]})",
                               ChatDefaults());
  BOOST_REQUIRE_MESSAGE(call.ok(), call.status().message());
  const auto& m = call->request.prompt.messages;
  BOOST_REQUIRE(m.size() == 6);
  BOOST_TEST((m[0].role == Role::kSystem));
  BOOST_TEST(m[1].content_is_list);
  BOOST_TEST(m[1].content.size() == 2);
  BOOST_TEST(*m[1].name == "bob");
  BOOST_TEST(m[2].content.empty());
  BOOST_TEST(*m[2].reasoning == "why");
  BOOST_REQUIRE(m[2].tool_calls.size() == 1);
  BOOST_TEST(m[2].tool_calls[0].id == "c1");
  BOOST_TEST(m[2].tool_calls[0].arguments.as_string() == "{\"x\": 1.0}");
  BOOST_TEST(m[3].tool_call_id == "c1");
  BOOST_TEST(*m[4].reasoning == "again");
  BOOST_TEST(!m[5].content_is_list);
}

BOOST_AUTO_TEST_CASE(thinking_is_settled) {
  struct Case {
    const char* members;
    bool on;
    int effort;
  };
  const Case cases[] = {
      {"", false, 75},
      {R"("reasoning_effort":"low")", true, 50},
      {R"("reasoning_effort":"minimal")", true, 50},
      {R"("reasoning_effort":"medium")", true, 75},
      {R"("reasoning_effort":"high")", true, 75},
      {R"("reasoning_effort":"xhigh")", true, 75},
      {R"("reasoning_effort":"max")", true, 100},
      {R"("reasoning_effort":33)", true, 33},
      {R"("reasoning_effort":"none")", false, 75},
      {R"("thinking":{"type":"enabled"})", true, 75},
      {R"("thinking":{"type":"disabled"},"reasoning_effort":"high")", false, 75},
      {R"("enable_thinking":true)", true, 75},
      {R"("enable_thinking":false,"thinking":{"type":"enabled"})", false, 75},
      {R"("chat_template_kwargs":{"thinking":true})", true, 75},
      {R"("chat_template_kwargs":{"thinking_mode":"thinking","drop_thinking":true})", true, 75},
      {R"("chat_template_kwargs":{"thinking_mode":"chat"},"reasoning_effort":"max")", false, 100},
      {R"("chat_template_kwargs":{"enable_thinking":true,"reasoning_effort":"max"},)"
       R"("reasoning_effort":"low")",
       true, 100},
      {R"("reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":100})", true, 100},
  };
  for (const Case& c : cases) {
    const ThinkingOptions thinking = good(c.members).request.prompt.thinking;
    BOOST_TEST(thinking.enabled == c.on, c.members);
    BOOST_TEST(thinking.effort == c.effort, c.members);
  }
  ChatDefaults defaults;
  defaults.thinking = true;
  const auto call = parse_chat("{" + kHello + R"(,"reasoning_effort":"none"})", defaults);
  BOOST_TEST(!call->request.prompt.thinking.enabled);
  BOOST_TEST(parse_chat("{" + kHello + "}", defaults)->request.prompt.thinking.enabled);
}

BOOST_AUTO_TEST_CASE(tool_choice_none_takes_the_tools_out) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f","description":"d",)"
      R"("parameters":{"type":"object"},"strict":false}}])";
  const ChatCall all = good(tools);
  BOOST_REQUIRE(all.request.prompt.tools.size() == 1);
  BOOST_TEST(all.request.prompt.tools[0].find("name")->as_string() == "f");
  BOOST_TEST(all.request.prompt.tools[0].find("type") == nullptr);
  const ChatCall none = good(tools + R"(,"tool_choice":"none")");
  BOOST_TEST(none.request.prompt.tools.empty());
  BOOST_TEST(none.tools_given);
  BOOST_TEST(good(R"("tool_choice":"auto")").request.prompt.tools.empty());
}

BOOST_AUTO_TEST_CASE(the_form_may_stand_in_the_prompt) {
  const std::string schema = R"({"type":"object","properties":{"b":{},"a":{"type":"integer"}}})";
  const std::string form = R"("response_format":{"type":"json_schema","json_schema":{"name":"n",)"
                           R"("schema":)" +
                           schema + "}}";
  BOOST_TEST(!good(form).request.prompt.response_format);
  const ChatCall shown = good(form + R"(,"schema_in_prompt":true)");
  BOOST_TEST(dump_json_compact(*shown.request.prompt.response_format) == schema);
  BOOST_TEST(bool(shown.request.constraint));  // and it is enforced
  const ChatCall text = good(R"("guided_json":"{\"type\": \"null\"}","schema_in_prompt":true)");
  BOOST_TEST(dump_json_compact(*text.request.prompt.response_format) == R"({"type":"null"})");
  const ChatCall any = good(R"("response_format":{"type":"json_object"},"schema_in_prompt":true)");
  BOOST_TEST(dump_json_compact(*any.request.prompt.response_format) == R"({"type":"json_object"})");
  // By the server's default only where there is a form; asked for, there must be one.
  ChatDefaults defaults;
  defaults.schema_in_prompt = true;
  defaults.loop_guard = true;
  const auto by_default =
      parse_chat(R"({"messages":[{"role":"user","content":"x"}],)" + form + "}", defaults);
  BOOST_REQUIRE(by_default.ok());
  BOOST_TEST(bool(by_default->request.prompt.response_format));
  BOOST_TEST(by_default->request.loop_guard);
  const auto plain =
      parse_chat(R"({"messages":[{"role":"user","content":"x"}],"loop_guard":false})", defaults);
  BOOST_REQUIRE(plain.ok());
  BOOST_TEST((!plain->request.prompt.response_format && !plain->request.loop_guard));
  for (const char* wrong :
       {R"("schema_in_prompt":true)", R"("schema_in_prompt":true,"guided_regex":"a")"}) {
    const auto refused = parse_chat(
        R"({"messages":[{"role":"user","content":"x"}],)" + std::string(wrong) + "}", {});
    BOOST_TEST(refused.status().param() == "schema_in_prompt");
  }
}

BOOST_AUTO_TEST_CASE(effort_tables) {
  BOOST_TEST(*EffortTable::parse("tiers")->find("low") == 25);
  BOOST_TEST(*EffortTable::parse("low=30 max=90")->find("low") == 30);
  BOOST_TEST(*EffortTable::parse("low=30 max=90")->find("high") == 75);
  for (const char* bad : {"low", "low=", "low=0", "low=101", "huge=5", "low=5x"}) {
    BOOST_TEST(!EffortTable::parse(bad).ok());
  }
}

BOOST_AUTO_TEST_CASE(bounds_one_past) {
  const auto messages = [](size_t n) {
    std::string text = "{\"messages\":[";
    for (size_t i = 0; i < n; ++i) text += std::string(i ? "," : "") + R"({"role":"user"})";
    return text + "]}";
  };
  BOOST_TEST(parse_chat(messages(kMessagesMax), ChatDefaults()).ok());
  BOOST_TEST(!parse_chat(messages(kMessagesMax + 1), ChatDefaults()).ok());
  const auto parts = [](size_t n) {
    std::string text = R"({"messages":[{"role":"user","content":[)";
    for (size_t i = 0; i < n; ++i)
      text += std::string(i ? "," : "") + R"({"type":"text","text":""})";
    return text + "]}]}";
  };
  BOOST_TEST(parse_chat(parts(kContentPartsMax), ChatDefaults()).ok());
  BOOST_TEST(!parse_chat(parts(kContentPartsMax + 1), ChatDefaults()).ok());
  const auto tools = [](size_t n) {
    std::string text = "\"tools\":[";
    for (size_t i = 0; i < n; ++i) {
      text += std::string(i ? "," : "") + R"({"function":{"name":"f)" + std::to_string(i) + "\"}}";
    }
    return text + "]";
  };
  BOOST_TEST(parse_with(tools(kToolsMax)).ok());
  BOOST_TEST(!parse_with(tools(kToolsMax + 1)).ok());
  BOOST_TEST(parse_with("\"stop\":\"" + std::string(kStopBytesMax, 's') + "\"").ok());
  BOOST_TEST(!parse_with("\"stop\":\"" + std::string(kStopBytesMax + 1, 's') + "\"").ok());
  const auto biases = [](size_t n) {
    std::string text = "\"logit_bias\":{";
    for (size_t i = 0; i < n; ++i) {
      text += std::string(i ? "," : "") + "\"" + std::to_string(i) + "\":1";
    }
    return text + "}";
  };
  BOOST_TEST(parse_with(biases(kApiLogitBiasMax)).ok());
  BOOST_TEST(!parse_with(biases(kApiLogitBiasMax + 1)).ok());
}
