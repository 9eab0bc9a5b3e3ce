// Replies as token ids: every way of feeding them gives one result, and each rule of the grammar.
#include "engine/text/output_stream.h"

#include <boost/test/unit_test.hpp>
#include <random>
#include <string>
#include <vector>

#include "ctl/prompt/reply_cuts.h"
#include "engine/base/utf8.h"
#include "tests/engine/text/text_fixture.h"

namespace tensorfold {
namespace {

using ctl::ReplyParts;
using test::small_tokenizer;

const std::shared_ptr<const Tokenizer>& tokenizer() {
  static const auto t = small_tokenizer();
  return t;
}

// A call block: "\n\n<DSML calls>", one call of f with the given parameters' text, closed.
std::string block(const std::string& parameters) {
  return "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" + parameters +
         "</｜DSML｜ invoke>\n</｜DSML｜ calls>";
}
std::string text_parameter(const std::string& key, const std::string& value) {
  return "<｜DSML｜ parameter name=\"" + key + "\" string=\"true\">" + value +
         "</｜DSML｜ parameter>\n";
}
std::string json_parameter(const std::string& key, const std::string& value) {
  return "<｜DSML｜ parameter name=\"" + key + "\" string=\"false\">" + value +
         "</｜DSML｜ parameter>\n";
}

struct Outcome {
  ReplyParts parts;
  bool stopped = false;
  int reasoning_tokens = 0, calls = 0, closed = 0;
  bool operator==(const Outcome&) const = default;
};

Outcome feed(const std::vector<TokenId>& ids, const std::vector<size_t>& cuts,
             const OutputOptions& options, PromptFormat format) {
  const auto stream = make_output_stream(tokenizer(), options, format);
  Outcome out;
  size_t at = 0;
  const auto part = [&](size_t end) {
    const OutputDelta delta = stream->feed(std::span(ids).subspan(at, end - at));
    BOOST_REQUIRE(utf8_first_invalid(delta.content) == std::string_view::npos);
    BOOST_REQUIRE(utf8_first_invalid(delta.reasoning) == std::string_view::npos);
    for (const ToolCallDelta& call : delta.tool_calls) {
      BOOST_REQUIRE(utf8_first_invalid(call.arguments) == std::string_view::npos);
    }
    ctl::add_delta(delta, out.parts);
    at = end;
  };
  for (const size_t cut : cuts) part(cut);
  part(ids.size());
  out.stopped = stream->stopped();
  ctl::add_delta(stream->finish(), out.parts);
  out.reasoning_tokens = stream->reasoning_tokens();
  out.calls = stream->tool_calls();
  out.closed = stream->tool_calls_closed();
  return out;
}

// The result of the whole, after checking that every cut in two, equal chunks and random cuts give
// the same.
Outcome all_cuts(const std::vector<TokenId>& ids, const OutputOptions& options = {},
                 PromptFormat format = PromptFormat::kV41) {
  const Outcome whole = feed(ids, {}, options, format);
  for (size_t cut = 0; cut <= ids.size(); ++cut) {
    BOOST_REQUIRE_MESSAGE(feed(ids, {cut}, options, format) == whole, "cut at token " << cut);
  }
  for (const size_t step : {1, 2, 3, 5, 7, 11, 23}) {
    std::vector<size_t> cuts;
    for (size_t at = step; at < ids.size(); at += step) cuts.push_back(at);
    BOOST_REQUIRE_MESSAGE(feed(ids, cuts, options, format) == whole, "chunks of " << step);
  }
  std::mt19937 random(23);
  for (int i = 0; i < 30; ++i) {
    std::vector<size_t> cuts(1 + random() % 6);
    for (size_t& cut : cuts) cut = random() % (ids.size() + 1);
    std::sort(cuts.begin(), cuts.end());
    BOOST_REQUIRE_MESSAGE(feed(ids, cuts, options, format) == whole, "random cuts " << i);
  }
  return whole;
}

Outcome reply(std::string_view text, OutputOptions options = {},
              PromptFormat format = PromptFormat::kV41) {
  const Outcome merged = all_cuts(tokenizer()->encode(text), options, format);
  // The same text from one token per byte: what the model's tokens are must not matter either.
  std::vector<TokenId> bytes;
  for (const ctl::ReplyItem& item : ctl::reply_items(text)) {
    if (item.kind != ReplyControl::kNone) {
      bytes.push_back(*tokenizer()->id_of(item.text));
      continue;
    }
    for (const char c : item.text) bytes.push_back(static_cast<unsigned char>(c));
  }
  BOOST_REQUIRE(all_cuts(bytes, options, format).parts == merged.parts);
  return merged;
}

Outcome thinking_reply(std::string_view text) {
  OutputOptions options;
  options.starts_in_reasoning = true;
  return reply(text, options);
}

BOOST_AUTO_TEST_CASE(reasoning_and_content_are_split_by_the_token) {
  const Outcome out = thinking_reply("let me see\n\n</think>\n\nanswer <b><｜end▁of▁sentence｜>");
  BOOST_TEST(out.parts.reasoning == "let me see\n\n");
  BOOST_TEST(out.parts.content == "\n\nanswer <b>");
  BOOST_TEST(out.calls == 0);
  BOOST_TEST(out.reasoning_tokens > 0);
  const Outcome open = thinking_reply("never closed 2 <");
  BOOST_TEST(open.parts.reasoning == "never closed 2 <");
  BOOST_TEST(open.parts.content == "");
  const Outcome doubled = thinking_reply("<think>a<think>b</think>c</think>d");
  BOOST_TEST(doubled.parts.reasoning == "ab");
  BOOST_TEST(doubled.parts.content == "cd");
}

BOOST_AUTO_TEST_CASE(reasoning_tokens_count_up_to_the_closing_token) {
  OutputOptions options;
  options.starts_in_reasoning = true;
  std::vector<TokenId> ids = {'a', 'b', *tokenizer()->id_of(kThinkCloseText), 'c', 'd'};
  BOOST_TEST(all_cuts(ids, options).reasoning_tokens == 3);
  BOOST_TEST(all_cuts(ids).reasoning_tokens == 0);
}

BOOST_AUTO_TEST_CASE(calls_stream_as_json) {
  const Outcome out = thinking_reply(
      "r</think>text" +
      block(text_parameter("a", "x \"q\" \\ \n你😀</b>") + json_parameter("n", "[1, 2]") +
            json_parameter("bad", "not json") + text_parameter("空", "")) +
      "<｜end▁of▁sentence｜>");
  BOOST_TEST(out.parts.reasoning == "r");
  BOOST_TEST(out.parts.content == "text");
  BOOST_REQUIRE(out.parts.calls.size() == 1u);
  BOOST_TEST(out.parts.calls[0].name == "f");
  BOOST_TEST(out.parts.calls[0].arguments ==
             "{\"a\": \"x \\\"q\\\" \\\\ \\n你😀</b>\", \"n\": [1, 2], \"bad\": \"not json\", "
             "\"空\": \"\"}");
  BOOST_TEST(out.parts.calls[0].id.starts_with("call_"));
  BOOST_TEST(out.closed == 1);
}

BOOST_AUTO_TEST_CASE(calls_without_parameters_and_several_calls) {
  const std::string two =
      "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n"
      "<｜DSML｜ invoke name=\"g h\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  const Outcome out = reply(two + "<｜end▁of▁sentence｜>");
  BOOST_REQUIRE(out.parts.calls.size() == 2u);
  BOOST_TEST(out.parts.calls[0].arguments == "{}");
  BOOST_TEST(out.parts.calls[1].arguments == "{}");
  BOOST_TEST(out.parts.calls[1].name == "g h");
  BOOST_TEST(out.parts.calls[0].id != out.parts.calls[1].id);
  BOOST_TEST(out.parts.content == "");
  OutputOptions other;
  other.call_id_seed = 99;
  BOOST_TEST(reply(two, other).parts.calls[0].id != out.parts.calls[0].id);
  BOOST_TEST(reply(two, other).parts.calls[0].id == reply(two, other).parts.calls[0].id);
  const Outcome v4 = reply(
      "hi\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
      "string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
      {}, PromptFormat::kV4);
  BOOST_TEST(v4.parts.content == "hi");
  BOOST_TEST(v4.parts.calls.at(0).arguments == "{\"a\": \"x\"}");
}

BOOST_AUTO_TEST_CASE(a_value_ends_at_its_own_closing_tag_only) {
  for (const std::string value :
       {"</｜DSML｜ invoke>", "<｜DSML｜ parameter name=\"b\" string=\"true\">", "</", "<<</<",
        "</｜DSML｜ parameterx>", "｜DSML｜", "<think></think>", "<｜User｜>",
        "</｜DSML｜</｜DSML｜"}) {
    const Outcome out = reply(block(text_parameter("a", value)));
    BOOST_REQUIRE_MESSAGE(out.parts.calls.size() == 1u, value);
    const Result<Json> arguments = parse_json(out.parts.calls[0].arguments);
    BOOST_REQUIRE_MESSAGE(arguments.ok(), out.parts.calls[0].arguments);
    BOOST_TEST(arguments->find("a")->as_string() == value);
    BOOST_TEST(out.parts.content == "");
  }
}

BOOST_AUTO_TEST_CASE(text_that_looks_like_a_tag_is_text) {
  // ｜DSML｜ made from ordinary tokens: the same bytes, none of them the control token.
  std::string text = "say\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n";
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  const Outcome out = all_cuts(ids);
  BOOST_TEST(out.parts.content == text);
  BOOST_TEST(out.calls == 0);
}

BOOST_AUTO_TEST_CASE(what_does_not_parse_is_shown_once_as_text) {
  for (const std::string text :
       {"a\n\n<｜DSML｜ calls>\nno call here", "a\n\n<｜DSML｜ callsx>\n",
        "the <｜DSML｜ calls> block", "a\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=", "｜DSML｜",
        "<｜DSML｜", "\n\n<", "a\n\n\n\n",
        "a\n\n<｜DSML｜ calls>\n<｜DSML｜ parameter name=\"a\" string=\"true\">x</｜DSML｜ "
        "parameter>",
        "a\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>"}) {
    const Outcome out = reply(text);
    BOOST_TEST(out.parts.content == text);
    BOOST_TEST(out.calls == 0);
    OutputOptions thinking;
    thinking.starts_in_reasoning = true;
    BOOST_TEST(reply(text, thinking).parts.reasoning == text);
  }
}

BOOST_AUTO_TEST_CASE(a_tag_longer_than_the_bound_is_text) {
  const std::string head = " invoke name=\"", tail = "\">";
  const auto with_name = [&](size_t tag_bytes) {
    return "\n\n<｜DSML｜ calls>\n<｜DSML｜" + head +
           std::string(tag_bytes - head.size() - tail.size(), 'n') + tail +
           "\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  };
  const auto outcome = [](const std::string& text) {
    return feed(tokenizer()->encode(text), {}, {}, PromptFormat::kV41);
  };
  BOOST_TEST(outcome(with_name(kDsmlTagMaxBytes)).calls == 1);
  const std::string longer = with_name(kDsmlTagMaxBytes + 1);
  BOOST_TEST(outcome(longer).calls == 0);
  BOOST_TEST(outcome(longer).parts.content == longer);
}

BOOST_AUTO_TEST_CASE(lenient_where_the_reference_is_strict) {
  // One line end before the block, a block inside reasoning, text after it, no closing tags.
  Outcome out = reply("a\n" + block(text_parameter("k", "v")).substr(2));
  BOOST_TEST(out.parts.content == "a");
  BOOST_TEST(out.calls == 1);
  out = thinking_reply("r" + block(text_parameter("k", "v")) + "</think>tail");
  BOOST_TEST(out.parts.reasoning == "r");
  BOOST_TEST(out.parts.content == "tail");
  BOOST_TEST(out.calls == 1);
  out = reply("a" + block("") + "\n\nb" + block("") + "\n");
  BOOST_TEST(out.parts.content == "a\n\nb");
  BOOST_TEST(out.calls == 2);
  out = reply("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" + text_parameter("k", "v") +
              "<｜DSML｜ invoke name=\"g\">\n</｜DSML｜ calls>");
  BOOST_REQUIRE(out.calls == 2);
  BOOST_TEST(out.closed == 2);
  BOOST_TEST(out.parts.calls[0].arguments == "{\"k\": \"v\"}");
  BOOST_TEST(out.parts.calls[1].arguments == "{}");
  out = reply("a\n\n<｜DSML｜ calls>\n</｜DSML｜ calls>");
  BOOST_TEST(out.parts.content == "a");
  BOOST_TEST(out.calls == 0);
}

BOOST_AUTO_TEST_CASE(a_reply_cut_short_leaves_the_call_open) {
  const std::string whole =
      "t" + block(text_parameter("a", "long value") + json_parameter("b", "[1]"));
  const size_t value = whole.find("long va") + 7;
  Outcome out = reply(whole.substr(0, value));
  BOOST_TEST(out.parts.calls.at(0).arguments == "{\"a\": \"long va");
  BOOST_TEST(out.closed == 0);
  out = reply(whole.substr(0, whole.find("[1]") + 2));
  BOOST_TEST(out.parts.calls.at(0).arguments == "{\"a\": \"long value\", \"b\": [1");
  out = reply(whole.substr(0, whole.find("value") + 5) + "</");
  BOOST_TEST(out.parts.calls.at(0).arguments == "{\"a\": \"long value</");
  // Cut anywhere at all: never both text and call, and never anything lost before the block.
  const std::vector<TokenId> ids = tokenizer()->encode(whole);
  for (size_t end = 0; end <= ids.size(); ++end) {
    const std::vector<TokenId> part(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(end));
    const Outcome cut = feed(part, {}, {}, PromptFormat::kV41);
    const bool as_text = cut.parts.content == tokenizer()->decode(part) && cut.calls == 0;
    const bool as_call = cut.parts.content == "t" && cut.calls == 1;
    BOOST_TEST((as_text || as_call), "cut at token " << end << ": " << cut.parts.content);
  }
}

BOOST_AUTO_TEST_CASE(stop_strings_cut_content_only) {
  OutputOptions options;
  options.stop = {"STOP", "\n\nQ", "abab"};
  Outcome out = reply("before STOP after", options);
  BOOST_TEST(out.parts.content == "before ");
  BOOST_TEST(out.stopped);
  out = reply("ST STO nothing", options);
  BOOST_TEST(out.parts.content == "ST STO nothing");
  BOOST_TEST(!out.stopped);
  out = reply("x abaabab y", options);
  BOOST_TEST(out.parts.content == "x aba");
  out = reply("a\n\nQ", options);
  BOOST_TEST(out.parts.content == "a");
  out = reply("a\n\n", options);
  BOOST_TEST(out.parts.content == "a\n\n");
  out = reply("t" + block(text_parameter("a", "STOP")) + "\ntail STOP x", options);
  BOOST_TEST(out.parts.calls.at(0).arguments == "{\"a\": \"STOP\"}");
  BOOST_TEST(out.parts.content == "t\ntail ");
  BOOST_TEST(out.stopped);
  options.starts_in_reasoning = true;
  out = reply("STOP abab</think>y STOP", options);
  BOOST_TEST(out.parts.reasoning == "STOP abab");
  BOOST_TEST(out.parts.content == "y ");
  // A stop string never reaches across a block of calls.
  options = {};
  options.stop = {"ab"};
  BOOST_TEST(reply("a" + block("") + "b", options).parts.content == "ab");
  options.stop = {"你好", "x你"};
  BOOST_TEST(reply("a x你 你好", options).parts.content == "a ");
  options.stop = {"", "<"};
  BOOST_TEST(reply("1 < 2", options).parts.content == "1 ");
}

BOOST_AUTO_TEST_CASE(broken_utf8_is_replaced_the_same_way_however_it_is_cut) {
  std::mt19937 random(29);
  for (int i = 0; i < 200; ++i) {
    std::string bytes;
    for (auto n = random() % 12; n > 0; --n)
      bytes += "\xE4\xBD\xA0\xF0\x9F\x98\x80\xFFz\n"[random() % 10];
    std::vector<TokenId> ids;
    for (const char c : bytes) ids.push_back(static_cast<unsigned char>(c));
    BOOST_TEST(all_cuts(ids).parts.content == utf8_lossy(bytes));
  }
}

BOOST_AUTO_TEST_CASE(turn_markers_end_the_reply_and_silent_tokens_show_nothing) {
  const Outcome out = reply("a<｜begin▁of▁sentence｜>b\n\n<｜User｜>c");
  BOOST_TEST(out.parts.content == "ab\n\n");
  BOOST_TEST(out.stopped);
  BOOST_TEST(!reply("a<｜end▁of▁sentence｜>").stopped);
  const Outcome in_block = reply("a\n\n<｜DSML｜ calls>\n<｜Assistant｜>b");
  BOOST_TEST(in_block.parts.content == "a\n\n<｜DSML｜ calls>\n");
}

BOOST_AUTO_TEST_CASE(parsing_of_calls_can_be_off) {
  OutputOptions options;
  options.parse_tool_calls = false;
  const std::string text = "t" + block(text_parameter("a", "x"));
  const Outcome out = reply(text, options);
  BOOST_TEST(out.parts.content == text);
  BOOST_TEST(out.calls == 0);
}

}  // namespace
}  // namespace tensorfold
