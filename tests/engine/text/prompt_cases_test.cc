// Every recorded prompt case: text, hash, images, errors, parsed replies and ways of cutting them.
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <iterator>
#include <string>

#include "ctl/prompt/case_check.h"

namespace tensorfold {
namespace {

Json cases_file() {
  std::ifstream file(TF_TEST_DATA "/encoding_cases.json", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  Result<Json> parsed = parse_json(text);
  BOOST_REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
  return std::move(*parsed);
}

BOOST_AUTO_TEST_CASE(all_recorded_cases_are_right) {
  const Result<ctl::CheckReport> report = ctl::check_cases(cases_file(), nullptr);
  BOOST_REQUIRE(report.ok());
  for (const ctl::CheckFailure& failure : report->failures) {
    BOOST_ERROR(failure.group << " " << failure.name << ": " << failure.reason);
  }
  BOOST_TEST(report->wrong() == 0);
  BOOST_TEST(report->right() == 118 + 15 + 7);
  BOOST_TEST(report->cuts_compared > 3000);
  BOOST_TEST(report->ignored.empty());
}

// A checker that cannot say no proves nothing: each kind of expectation, spoiled, is noticed.
BOOST_AUTO_TEST_CASE(spoiled_expectations_are_noticed) {
  const auto wrong = [](std::string_view text) {
    const Result<ctl::CheckReport> report = ctl::check_cases(*parse_json(text), nullptr);
    BOOST_REQUIRE_MESSAGE(report.ok(), report.status().message());
    return report->wrong() == 0 ? "" : report->failures.front().reason;
  };
  const auto prompt = [&](const std::string& rest) {
    return wrong(R"({"cases": [{"name": "n", "format": "v4.1", "options": {"thinking_mode": "chat"},
                 "messages": [{"role": "user", "content": "q"}], )" +
                 rest + "}]}");
  };
  const std::string right =
      R"("expected_prompt": "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>")";
  BOOST_TEST(prompt(right) == "");
  BOOST_TEST(prompt(R"("expected_prompt": "x")").starts_with("the prompt differs at byte 0"));
  BOOST_TEST(
      prompt(right + R"(, "expected_prompt_sha256_utf8": "00")").starts_with("the prompt's"));
  BOOST_TEST(prompt(right + R"(, "expected_images": [{"type": "image", "url": "a"}])")
                 .starts_with("the images are"));
  BOOST_TEST(prompt(R"("expected_error": "ValueError")").starts_with("expected ValueError"));
  const auto reply = [&](const std::string& rest) {
    return wrong(R"({"completion_parsing_cases": [{"name": "n", "thinking_mode": "thinking", )" +
                 rest + "}]}");
  };
  BOOST_TEST(reply(R"("completion": "r", "expected_error": "ValueError")")
                 .starts_with("expected ValueError, found AssertionError"));
  BOOST_TEST(reply(R"("completion": "r</think>c<｜end▁of▁sentence｜>", "expected":
      {"role": "assistant", "content": "d", "reasoning_content": "r", "tool_calls": []})")
                 .starts_with("the message differs"));
  BOOST_TEST(wrong(R"({"image_grid_cases": [{"width": 64, "height": 48, "vit_grid": [34, 45],
                   "llm_grid": [12, 15], "num_tokens": 195}]})")
                 .starts_with("num_tokens: expected 195"));
  BOOST_TEST(!ctl::check_cases(*parse_json("{}"), nullptr).ok());
  BOOST_TEST(!ctl::check_cases(*parse_json("[]"), nullptr).ok());
  BOOST_TEST(!ctl::check_cases(*parse_json(R"({"cases": 1})"), nullptr).ok());
}

}  // namespace
}  // namespace tensorfold
