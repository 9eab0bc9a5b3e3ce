// The fields that ask for a form of the reply: every spelling, every refusal by its field.
#include <boost/test/unit_test.hpp>
#include <string>

#include "daemon/api/chat_request.h"

using namespace tensorfold;
using namespace tensorfold::api;

namespace {

Result<ChatCall> parse_with(const std::string& members) {
  return parse_chat(R"({"messages":[{"role":"user","content":"hi"}],)" + members + "}",
                    ChatDefaults());
}

ChatCall good(const std::string& members) {
  auto call = parse_with(members);
  BOOST_REQUIRE_MESSAGE(call.ok(), members << ": " << call.status().message());
  return std::move(call).value();
}

struct Refusal {
  const char* members;
  const char* param;
};
const Refusal kRefusals[] = {
    {R"("response_format":{"type":"xml"})", "response_format.type"},
    {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
    {R"("response_format":{"type":"json_schema","json_schema":{}})",
     "response_format.json_schema.schema"},
    {R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"strict":1}})",
     "response_format.json_schema.strict"},
    {R"("response_format":{"type":"json_object"},"guided_regex":"a")", "guided_regex"},
    {R"("response_format":{"type":"text"},"guided_json":{})", "guided_json"},
    {R"("response_format":{"type":"regex"})", "response_format.regex"},
    {R"("guided_json":"{")", "guided_json"},
    {R"("guided_json":[])", "guided_json"},
    {R"("guided_regex":"")", "guided_regex"},
    {R"("guided_choice":[])", "guided_choice"},
    {R"("guided_choice":["a",""])", "guided_choice[1]"},
    {R"("guided_choice":"a")", "guided_choice"},
    {R"("structured_outputs":{"structural_tag":"x"})", "structured_outputs.structural_tag"},
    {R"("structured_outputs":{"json":{},"regex":"a"})", "structured_outputs.regex"},
    {R"("tool_choice":{"type":"function","function":{"name":"g"}},)"
     R"("tools":[{"type":"function","function":{"name":"f"}}])",
     "tool_choice"},
    {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":)"
     R"([{"type":"function","function":{"name":"g"}}]}},)"
     R"("tools":[{"type":"function","function":{"name":"f"}}])",
     "tool_choice"},
};

}  // namespace

BOOST_AUTO_TEST_CASE(refusals_name_their_field) {
  for (const Refusal& refusal : kRefusals) {
    const auto call = parse_with(refusal.members);
    BOOST_REQUIRE_MESSAGE(!call.ok(), refusal.members);
    BOOST_TEST_MESSAGE(call.status().message());
    BOOST_TEST(call.status().param() == refusal.param, refusal.members);
  }
}

BOOST_AUTO_TEST_CASE(every_spelling_of_a_form_is_one_constraint) {
  using grammar::ConstraintKind;
  const std::string schema = R"({"type":"object","properties":{"b":{},"a":{}}})";
  const auto form = [](const std::string& fields) { return good(fields).request.constraint; };
  for (const std::string& fields : {
           R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" +
               schema + "}}",
           R"("response_format":{"type":"json_object","schema":)" + schema + "}",
           R"("guided_json":)" + schema,
           R"("structured_outputs":{"json":)" + schema + "}",
       }) {
    const auto spec = form(fields);
    BOOST_REQUIRE_MESSAGE(spec != nullptr, fields);
    BOOST_TEST((spec->kind == ConstraintKind::kJsonSchema));
    BOOST_TEST(spec->text == schema);  // members in the client's order
    BOOST_TEST(!spec->strict);
    BOOST_TEST(!spec->param.empty());
  }
  BOOST_TEST(form(R"("response_format":{"type":"json_schema","json_schema":)"
                  R"({"schema":{},"strict":true}})")
                 ->strict);
  BOOST_TEST(
      (form(R"("response_format":{"type":"json_object"})")->kind == ConstraintKind::kJsonObject));
  BOOST_TEST((form(R"("guided_regex":"a+")")->kind == ConstraintKind::kRegex));
  BOOST_TEST((form(R"("guided_grammar":"root ::= \"a\"")")->kind == ConstraintKind::kEbnf));
  BOOST_TEST(form(R"("guided_choice":["a","b"])")->choices.size() == 2);
  BOOST_TEST(form(R"("response_format":{"type":"text"})") == nullptr);
  BOOST_TEST(form(R"("structured_outputs":{"json_object":false})") == nullptr);
  BOOST_TEST(
      (form(R"("structured_outputs":{"json":{},"disable_any_whitespace":true})")->whitespace ==
       grammar::Whitespace::kCompact));
}

BOOST_AUTO_TEST_CASE(tool_choices_become_a_constraint) {
  using Choice = grammar::ToolChoice;
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f","strict":true}},)"
                            R"({"type":"function","function":{"name":"g"}}])";
  const auto form = [&](const std::string& more) { return good(tools + more).request.constraint; };
  const auto automatic = form("");
  BOOST_REQUIRE(automatic != nullptr);
  BOOST_TEST((automatic->tool_choice == Choice::kAuto));
  BOOST_TEST(automatic->tools.size() == 2);
  BOOST_TEST(automatic->tools[0].strict);
  BOOST_TEST(automatic->parallel);
  BOOST_TEST(form(R"(,"tool_choice":"none")") == nullptr);
  BOOST_TEST(form(R"(,"ignore_eos":true)") == nullptr);  // an end would be enforced with it
  BOOST_TEST((form(R"(,"tool_choice":"required")")->tool_choice == Choice::kRequired));
  BOOST_TEST(!form(R"(,"tool_choice":"required","parallel_tool_calls":false)")->parallel);
  const auto named = form(R"(,"tool_choice":{"type":"function","function":{"name":"g"}})");
  BOOST_TEST((named->tool_choice == Choice::kNamed));
  BOOST_TEST(named->named == "g");
  const auto allowed =
      form(R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":)"
           R"([{"type":"function","function":{"name":"g"}}]}})");
  BOOST_TEST((allowed->tool_choice == Choice::kRequired));
  BOOST_REQUIRE(allowed->tools.size() == 1);
  BOOST_TEST(allowed->tools[0].name == "g");
}
