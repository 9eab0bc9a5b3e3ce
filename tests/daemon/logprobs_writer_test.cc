// Log-probabilities in every API that has them: of prompt tokens, and of the text of responses.
#include <string>

#include "daemon/api/chat_writer.h"
#include "daemon/api/completion_writer.h"
#include "daemon/api/responses_writer.h"
#include "tests/daemon/written_reply.h"

using namespace tensorfold;
using namespace tensorfold::api;

BOOST_AUTO_TEST_CASE(prompt_tokens_have_log_probabilities) {
  Play play;
  play.deltas.assign(1, {});
  play.deltas[0].content = "x";
  play.reason = FinishReason::kStop;
  play.prompt = {{0, 0.0f, {}, 0},
                 {1, -0.5f, {{1, -0.5f}, {2, -2.0f}}, 1},
                 {5, -9.0f, {{2, -0.25f}, {3, -3.0f}}, 40}};
  const std::string second = R"({"1":{"logprob":-0.5,"rank":1,"decoded_token":"B"}})";
  const std::string third = R"({"5":{"logprob":-9,"rank":40,"decoded_token":"F"},)"
                            R"("2":{"logprob":-0.25,"rank":1,"decoded_token":"C"}})";
  ChatLook chat;
  chat.prompt_logprobs = 1;
  const Json said = whole_of(*make_chat_writer(false, chat), play);
  BOOST_TEST(dump_json_compact(*said.find("prompt_logprobs")) ==
             "[null," + second + "," + third + "]");
  BOOST_TEST(whole_of(*make_chat_writer(false, {}), play).find("prompt_logprobs") == nullptr);

  CompletionLook look;
  look.choices = look.n = 2;  // of one prompt: what is said of it comes with the first
  look.logprobs = 2;
  look.prompt_logprobs = 0;
  look.echo = {std::string("ABF"), std::string("ABF")};
  const Json reply = whole_of(*make_completion_writer(false, look), play);
  for (const Json& choice : reply.find("choices")->as_array()) {
    BOOST_TEST(dump_json_compact(*choice.find("prompt_logprobs")) ==
               R"([null,{"1":{"logprob":-0.5,"rank":1,"decoded_token":"B"}},)"
               R"({"5":{"logprob":-9,"rank":40,"decoded_token":"F"}}])");
    const Json& lists = *choice.find("logprobs");
    BOOST_TEST(dump_json_compact(*lists.find("tokens")) == R"(["A","B","F"])");
    BOOST_TEST(dump_json_compact(*lists.find("token_logprobs")) == "[null,-0.5,-9]");
    BOOST_TEST(dump_json_compact(*lists.find("top_logprobs")) ==
               R"([null,{"B":-0.5,"C":-2},{"C":-0.25,"D":-3}])");
    BOOST_TEST(dump_json_compact(*lists.find("text_offset")) == "[0,1,2]");
  }
  look.choices = look.n = 1;
  look.prompt_logprobs = -1;
  look.echo.resize(1);
  std::vector<std::string> texts;
  for (const Event& e : events_of(play(*make_completion_writer(true, look)))) {
    if (e.json.is_null()) continue;
    texts.push_back(text_at(choice_of(e.json), {"text"}));
    if (texts.size() > 1) continue;
    BOOST_TEST(dump_json_compact(*choice_of(e.json).find("logprobs")->find("token_logprobs")) ==
               "[null,-0.5,-9]");
  }
  BOOST_TEST((texts == std::vector<std::string>{"ABF", "x", ""}));
}

// A step's tokens come with the text that it gives; reasoning and calls have none.
BOOST_AUTO_TEST_CASE(responses_list_the_tokens_of_their_text) {
  const TokenLogprob b{1, -0.5f, {{1, -0.5f}, {2, -2.0f}}}, c{2, -1.0f, {}}, d{3, -1.5f, {}};
  const ReplyInfo info = info_of();
  const auto play = [&](ReplyWriter& writer) {
    std::string out;
    writer.begin(info, out);
    const std::vector<std::pair<OutputDelta, std::vector<TokenLogprob>>> steps = {
        {{"why", "", {}}, {d}},  // reasoning
        {{"", "", {}}, {b}},     // held back
        {{"", "Bx", {}}, {c}},   //
        {{"", "y", {}}, {d}},    //
        {{"", "", {{0, "call_a", "f", "{}"}}}, {b}}};
    for (const auto& [delta, logprobs] : steps)
      writer.piece({0, delta, {}, logprobs, info.text}, out);
    const ReplyStats stats = stats_of();
    const Usage total = {10, 4, 6, 2};
    writer.finish({0, FinishReason::kToolCalls, stats, &total, -1}, out);
    writer.end(out);
    return out;
  };
  const auto tokens = [](const Json& list) {
    std::string out;
    for (const Json& one : list.as_array()) out += text_at(one, {"token"});
    return out;
  };
  for (const bool asked : {true, false}) {
    ResponsesLook look;
    look.logprobs = asked;
    look.top_logprobs = asked ? 2 : 0;
    const std::string bytes = play(*make_responses_writer(false, look));
    const auto whole = parse_json(bytes);
    BOOST_REQUIRE_MESSAGE(whole.ok(), bytes);
    BOOST_TEST(text_at(*whole, {"top_logprobs"}) == (asked ? "2" : "0"));
    const Json& part = whole->find("output")->as_array().at(1).find("content")->as_array().at(0);
    BOOST_TEST(tokens(*part.find("logprobs")) == (asked ? "BCD" : ""));
    if (asked) {
      const Json& first = part.find("logprobs")->as_array().at(0);
      BOOST_TEST(first.find("top_logprobs")->as_array().size() == 2U);
      BOOST_TEST(first.find("logprob")->as_double() == -0.5);
    }
    std::string streamed, done;
    for (const Event& e : events_of(play(*make_responses_writer(true, look)))) {
      if (e.name == "response.output_text.delta") streamed += tokens(*e.json.find("logprobs"));
      if (e.name == "response.output_text.done") done = tokens(*e.json.find("logprobs"));
    }
    BOOST_TEST(streamed == (asked ? "BCD" : ""));
    BOOST_TEST(done == streamed);
  }
}
