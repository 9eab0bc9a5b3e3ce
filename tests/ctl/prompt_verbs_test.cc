// tfctl prompt encode, decode and check, run as from the command line.
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ctl/verb.h"
#include "engine/base/json.h"
#include "tests/engine/text/text_fixture.h"

namespace tensorfold::ctl {
namespace {

struct Ran {
  int code = 0;
  std::string out, err;
};

Ran tfctl(std::vector<std::string> args, const std::string& input = "") {
  std::istringstream in(input);
  std::ostringstream out, err;
  const int code = run_tfctl(args, in, out, err);
  return {code, out.str(), err.str()};
}

// A folder with the small tokenizer in it.
class Folder {
 public:
  Folder() {
    path_ =
        std::filesystem::temp_directory_path() / ("tf_prompt_verbs." + std::to_string(getpid()));
    std::filesystem::create_directories(path_);
    write("tokenizer.json", dump_json_compact(test::tokenizer_json()));
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return (path_ / name).string();
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

BOOST_AUTO_TEST_CASE(encode_gives_the_prompt_of_a_request_body) {
  const std::string body = R"({"model": "m", "messages": [{"role": "developer", "content": "s"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function",
        "function": {"name": "f", "arguments": "{\"n\": 1.50}"}}]},
      {"role": "tool", "tool_call_id": "c", "content": "ok"}]})";
  const Ran ran = tfctl({"prompt", "encode"}, body);
  BOOST_TEST(ran.code == kExitOk, ran.err);
  BOOST_TEST(ran.out ==
             "<｜begin▁of▁sentence｜><｜System｜>s<｜User｜>a\n\nb<｜Assistant｜></think>\n\n"
             "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
             "<｜DSML｜ parameter name=\"n\" string=\"false\">1.5</｜DSML｜ parameter>\n"
             "</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜>"
             "<｜User｜><tool_result>ok</tool_result><｜Assistant｜></think>");
  const Ran thinking = tfctl({"prompt", "encode", "--format", "v4"},
                             R"({"messages": [{"role": "user", "content": "q"}],
                                 "reasoning_effort": "max"})");
  BOOST_TEST(thinking.out.starts_with("<｜begin▁of▁sentence｜>Reasoning Effort: Absolute maximum"),
             thinking.err);
  BOOST_TEST(thinking.out.ends_with("<｜User｜>q<｜Assistant｜><think>"));
}

BOOST_AUTO_TEST_CASE(encode_takes_images_that_serving_refuses) {
  const std::string body = R"({"messages": [{"role": "user", "content": [
      {"type": "text", "text": "what is"},
      {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]})";
  const Ran ran = tfctl({"prompt", "encode"}, body);
  BOOST_TEST(
      ran.out ==
          "<｜begin▁of▁sentence｜><｜User｜>what is\n\n<｜deepseek_image｜><｜Assistant｜></think>",
      ran.err);
  const Ran audio =
      tfctl({"prompt", "encode"},
            R"({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]})");
  BOOST_TEST(audio.code == kExitFailed);
  BOOST_TEST(audio.err.find("input_audio") != std::string::npos, audio.err);
}

BOOST_AUTO_TEST_CASE(tokens_go_out_and_come_back) {
  const Folder folder;
  const std::string body = R"({"messages": [{"role": "user", "content": "hello <think>\n你"}]})";
  const Ran text = tfctl({"prompt", "encode"}, body);
  const Ran ids = tfctl({"prompt", "encode", "--tokens", "--tokenizer", folder.path()}, body);
  BOOST_REQUIRE_MESSAGE(ids.code == kExitOk, ids.err);
  const Ran back = tfctl({"prompt", "decode", "--tokenizer", folder.path()}, ids.out);
  BOOST_TEST(back.out == text.out);
  const Ran control = tfctl({"prompt", "encode", "--tokens", "--control-tokens", "--tokenizer",
                             folder.path() + "/tokenizer.json"},
                            body);
  BOOST_TEST(parse_json(control.out)->as_array().size() < parse_json(ids.out)->as_array().size());
  const Ran json =
      tfctl({"prompt", "decode", "--json", "--tokenizer", folder.path()}, "[104, 101]");
  BOOST_TEST(json.out == "{\"text\": \"he\", \"ids\": [104, 101], \"tokens\": [\"h\", \"e\"]}\n");
  const Ran unknown = tfctl({"prompt", "decode", "--tokenizer", folder.path()}, "1 2 99999999");
  BOOST_TEST(unknown.code == kExitFailed);
  BOOST_TEST(unknown.err.find("99999999") != std::string::npos);
  BOOST_TEST(tfctl({"prompt", "decode", "--tokenizer", folder.path()}, "1 x").err.find("byte 2") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(check_says_what_is_wrong_and_ends_with_one) {
  const Ran right = tfctl({"prompt", "check", TF_TEST_DATA "/encoding_cases.json"});
  BOOST_TEST(right.code == kExitOk, right.out << right.err);
  BOOST_TEST(right.out.find("right 140, wrong 0") != std::string::npos, right.out);
  const Folder folder;
  const std::string file = folder.write("cases.json", R"({"extra": 1, "cases": [{"name": "spoiled",
      "format": "v4.1", "messages": [{"role": "user", "content": "q"}],
      "options": {"thinking_mode": "chat"}, "expected_prompt": "no"}]})");
  const Ran wrong = tfctl({"prompt", "check", file});
  BOOST_TEST(wrong.code == kExitFailed);
  BOOST_TEST(wrong.out.find("wrong  cases  spoiled: the prompt differs") != std::string::npos);
  BOOST_TEST(wrong.out.find("ignored field: extra") != std::string::npos);
  const Ran json = tfctl({"prompt", "check", file, "--json"});
  BOOST_TEST(json.code == kExitFailed);
  const Json report = *parse_json(json.out);
  BOOST_TEST(report.find("wrong")->as_int64().value() == 1);
  BOOST_TEST(report.find("failures")->as_array()[0].find("name")->as_string() == "spoiled");
  const std::string broken = folder.write("broken.json", "{\"cases\": [");
  BOOST_TEST(tfctl({"prompt", "check", broken}).err.find("broken.json: JSON: ") !=
             std::string::npos);
  BOOST_TEST(tfctl({"prompt", "check", folder.path() + "/none.json"}).code == kExitFailed);
  BOOST_TEST(tfctl({"prompt", "check"}).code == kExitUsage);
}

BOOST_AUTO_TEST_CASE(bad_bodies_and_options_are_refused) {
  BOOST_TEST(tfctl({"prompt", "encode"}, "{").code == kExitFailed);
  BOOST_TEST(tfctl({"prompt", "encode", "--format", "v3"}, "{}").err.find("--format v3") !=
             std::string::npos);
  const Ran effort = tfctl({"prompt", "encode"}, R"({"messages": [{"role": "user", "content": "q"}],
                                                     "reasoning_effort": "extreme"})");
  BOOST_TEST(effort.code == kExitFailed);
  BOOST_TEST(effort.err.find("reasoning_effort") != std::string::npos, effort.err);
  BOOST_TEST(tfctl({"prompt", "encode", "--tokens", "--tokenizer", "/nowhere"},
                   R"({"messages": [{"role": "user", "content": "q"}]})")
                 .err.find("/nowhere") != std::string::npos);
}

}  // namespace
}  // namespace tensorfold::ctl
