// Regular expressions, EBNF, choices, tool calls, and what must be refused in bounded time.
#include <boost/test/unit_test.hpp>
#include <chrono>

#include "engine/grammar/constraint.h"
#include "engine/grammar/text_match.h"

namespace tensorfold::grammar {
namespace {

Result<CompiledConstraint> compile(ConstraintKind kind, const std::string& text) {
  ConstraintSpec spec;
  spec.kind = kind;
  spec.text = text;
  spec.whitespace = Whitespace::kAny;
  spec.ordered = spec.closed = false;
  return compile_program(spec, kTextMarkerId);
}

bool accepts(const CompiledConstraint& c, const std::string& text) {
  return match_text(*c.program, text).accepted;
}

std::string refusal(ConstraintKind kind, const std::string& text) {
  const auto c = compile(kind, text);
  BOOST_REQUIRE_MESSAGE(!c.ok(), "not refused: " << text.substr(0, 200));
  BOOST_TEST((c.status().code() == StatusCode::kInvalidArgument));
  return c.status().message();
}

BOOST_AUTO_TEST_CASE(regular_expressions) {
  struct Case {
    const char *pattern, *yes, *no;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"a+b?", "aab", "b"},
           {"^[a-f\\d]{2,3}$", "a1f", "a1f2"},
           {"(?:x|yz)*", "xyzx", "xy"},
           {"[^a]", "\xC3\xA9", "a"},
           {"\\p{L}+", "\xC3\xA9\x41", "a1"},
           {"\\u00e9\\x41", "\xC3\xA9\x41", "eA"},
           {".", "\xF0\x9F\x98\x80", "\n"},
           {"a{2}", "aa", "aaa"},
           {"x{,2}", "x{,2}", "xx"},
           {"[\\w-]+", "a-_", "a b"},
           {"(a|^b)c", "bc", "c"},
       }) {
    const auto compiled = compile(ConstraintKind::kRegex, c.pattern);
    BOOST_REQUIRE_MESSAGE(compiled.ok(), c.pattern << ": " << compiled.status().message());
    BOOST_TEST(accepts(*compiled, c.yes), c.pattern << " refuses " << c.yes);
    BOOST_TEST(!accepts(*compiled, c.no), c.pattern << " accepts " << c.no);
  }
  for (const char* pattern :
       {"a(?=b)", "(?!x)", "(?<=a)b", "(a)\\1", "\\bx", "(", "[a", "a**", "*a", "\\k<x>", "(?i)a",
        "a{3,2}", "\\p{Script=Greek}", "[z-a]", "\\"}) {
    BOOST_TEST(refusal(ConstraintKind::kRegex, pattern).find("offset") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(ebnf) {
  const auto c = compile(ConstraintKind::kEbnf,
                         "# arithmetic\n"
                         "root  ::= expr \"\\n\"?\n"
                         "expr  ::= term ([-+] term)*\n"
                         "term  ::= num | \"(\" ws expr ws \")\"\n"
                         "num   ::= [0-9]{1,3}\n"
                         "ws    ::= [ \\t]*\n");
  BOOST_REQUIRE_MESSAGE(c.ok(), c.status().message());
  BOOST_TEST(accepts(*c, "1+(2-( 33 ))"));
  BOOST_TEST(accepts(*c, "999\n"));
  BOOST_TEST(!accepts(*c, "1+(2"));
  BOOST_TEST(!accepts(*c, "1234"));
  BOOST_TEST(!accepts(*c, "1+"));
  BOOST_TEST(refusal(ConstraintKind::kEbnf, "root ::= root \"a\" | \"b\"").find("left-recursive") !=
             std::string::npos);
  BOOST_TEST(refusal(ConstraintKind::kEbnf, "root ::= x root\nx ::= \"a\"?").find("line") !=
             std::string::npos);
  BOOST_TEST(refusal(ConstraintKind::kEbnf, "root ::= \"a\" root").find("never end") !=
             std::string::npos);
  BOOST_TEST(refusal(ConstraintKind::kEbnf, "root ::= missing").find("no rule \"missing\"") !=
             std::string::npos);
  BOOST_TEST(refusal(ConstraintKind::kEbnf, "a ::= \"x\"").find("root") != std::string::npos);
}

ConstraintSpec weather(ToolChoice choice) {
  ConstraintSpec spec;
  spec.tool_choice = choice;
  ToolSpec get{"get_weather", {}, true};
  get.parameters = *parse_json(
      R"({"type":"object","properties":{"city":{"type":"string"},
          "days":{"type":"integer","minimum":1},
          "unit":{"enum":["C","F"]},"when":{"type":["string","null"]}},"required":["city"]})");
  ToolSpec ping{"ping", {}, false};
  ping.parameters =
      *parse_json(R"({"type":"object","properties":{}, "additionalProperties":false})");
  spec.tools = {get, ping};
  return spec;
}

std::string parameter(const std::string& name, const std::string& string,
                      const std::string& value) {
  return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + string + "\">" + value +
         "</｜DSML｜ parameter>\n";
}
std::string invoke(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜ invoke name=\"" + name + "\">\n" + parameters + "</｜DSML｜ invoke>\n";
}
std::string calls(const std::string& invokes) {
  return "\n\n<｜DSML｜ calls>\n" + invokes + "</｜DSML｜ calls>";
}

BOOST_AUTO_TEST_CASE(tool_calls) {
  const auto c = compile_program(weather(ToolChoice::kRequired), kTextMarkerId);
  BOOST_REQUIRE_MESSAGE(c.ok(), c.status().message());
  const std::string city = parameter("city", "true", "Oslo <b> & \"x\"\n");
  BOOST_TEST(accepts(*c, calls(invoke("get_weather", city))));
  BOOST_TEST(accepts(*c, calls(invoke("get_weather", parameter("days", "false", "3") + city))));
  BOOST_TEST(accepts(*c, calls(invoke("get_weather", city) + invoke("ping", "\n"))));
  BOOST_TEST(accepts(*c, calls(invoke("ping", ""))));
  BOOST_TEST(accepts(*c, calls(invoke("get_weather", city + parameter("when", "false", "null")))));
  BOOST_TEST(accepts(*c, calls(invoke("get_weather", city + parameter("when", "true", "now")))));
  for (const std::string& wrong :
       {calls(""), calls(invoke("get_weather", "")), calls(invoke("foreign", city)),
        calls(invoke("get_weather", parameter("city", "false", "\"Oslo\""))),
        calls(invoke("get_weather", city + city)),
        calls(invoke("get_weather", city + parameter("days", "true", "3"))),
        calls(invoke("get_weather", city + parameter("days", "false", "0"))),
        calls(invoke("get_weather", city + parameter("unit", "true", "K"))),
        calls(invoke("get_weather", city + parameter("other", "true", "1"))),
        calls(invoke("ping", "\n")) + "text", std::string("hello"),
        "\n" + calls(invoke("ping", ""))})
    BOOST_TEST(!accepts(*c, wrong), "accepted " << wrong);

  const auto automatic = compile_program(weather(ToolChoice::kAuto), kTextMarkerId);
  BOOST_REQUIRE(automatic.ok());
  BOOST_TEST(accepts(*automatic, "just < text"));
  BOOST_TEST(accepts(*automatic, "first" + calls(invoke("ping", ""))));
  BOOST_TEST(!accepts(*automatic, "x <｜DSML｜ calls>\n"));
  BOOST_TEST(!accepts(*automatic, "x\n\n<｜DSML｜ invoke"));

  ConstraintSpec one = weather(ToolChoice::kNamed);
  one.named = "ping";
  const auto named = compile_program(one, kTextMarkerId);
  BOOST_REQUIRE(named.ok());
  BOOST_TEST(accepts(*named, calls(invoke("ping", ""))));
  BOOST_TEST(!accepts(*named, calls(invoke("get_weather", city))));
  BOOST_TEST(!accepts(*named, calls(invoke("ping", "") + invoke("ping", ""))));
  one.named = "nobody";
  BOOST_TEST(!compile_program(one, kTextMarkerId).ok());

  ConstraintSpec old = weather(ToolChoice::kRequired);
  old.markup = ToolMarkup::kV4;
  const auto v4 = compile_program(old, kTextMarkerId);
  BOOST_REQUIRE(v4.ok());
  BOOST_TEST(
      accepts(*v4,
              "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"ping\">\n\n</｜DSML｜invoke>\n"
              "</｜DSML｜tool_calls>"));
}

std::string repeat(const std::string& piece, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += piece;
  return out;
}

BOOST_AUTO_TEST_CASE(schemas_that_say_the_same_are_compiled_once) {
  const auto c = compile(ConstraintKind::kJsonSchema, R"({"type": "object", "properties": {
      "a": {"title": "one", "type": "object", "properties": {"x": {"type": "integer"}}},
      "b": {"type": "object", "properties": {"x": {"description": "two", "type": "integer"}}},
      "title": {"type": "object", "properties": {"title": {"type": "integer"}}},
      "d": {"type": "object", "properties": {"title": {"type": "string"}}},
      "e": {"const": 1}, "f": {"const": 1.5}, "g": {"enum": [{"title": 1}]},
      "h": {"enum": [{"title": 2}]}}})");
  BOOST_REQUIRE(c.ok());
  // The root, any value, "a" and "b" together; each of the others its own.
  const Program& p = *c->program;
  BOOST_TEST(p.objects.size() == 7U);
  const auto json = [&](const std::string& text) { return accepts(*c, text); };
  BOOST_TEST(json(R"({"a": {"x": 1}, "b": {"x": 2}})"));
  BOOST_TEST(!json(R"({"a": {"x": "1"}})"));
  BOOST_TEST(!json(R"({"b": {"x": "1"}})"));
  BOOST_TEST(json(R"({"title": {"title": 1}, "d": {"title": "t"}})"));
  BOOST_TEST(!json(R"({"title": {"title": "t"}})"));
  BOOST_TEST(!json(R"({"d": {"title": 1}})"));
  BOOST_TEST(json(R"({"e": 1, "f": 1.5, "g": {"title": 1}, "h": {"title": 2}})"));
  BOOST_TEST(!json(R"({"h": {"title": 1}})"));
  BOOST_TEST(!json(R"({"f": 1})"));
}

BOOST_AUTO_TEST_CASE(hostile_schemas_end_in_an_error) {
  const auto from = std::chrono::steady_clock::now();
  using K = ConstraintKind;
  refusal(K::kJsonSchema, repeat("{\"items\":", 10'000) + "{}" + repeat("}", 10'000));
  BOOST_TEST(refusal(K::kJsonSchema, R"({"$ref":"#"})").find("$ref") != std::string::npos);
  BOOST_TEST(
      refusal(K::kJsonSchema,
              R"({"allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"}]},)"
              R"("b":{"$ref":"#/$defs/a"}}})")
          .find("leads back") != std::string::npos);
  BOOST_TEST(refusal(K::kJsonSchema, R"({"$ref":"http://example.com/s"})").find("not fetched") !=
             std::string::npos);
  refusal(K::kJsonSchema, R"({"type":"string","pattern":"^(([a-z]{1,200}){1,200}){1,200}$"})");
  refusal(K::kJsonSchema, R"({"type":"string","pattern":"(a|b)*a(a|b){20}$"})");
  refusal(K::kJsonSchema,
          R"({"type":"string","pattern":")" + repeat("(", 5'000) + repeat(")", 5'000) + R"("})");
  std::string texts;
  for (int i = 0; i < 400'000; ++i)
    texts += (i ? ",\"v" : "\"v") + std::to_string(int64_t{i} * 7919) + "\"";
  refusal(K::kJsonSchema, "{\"enum\":[" + texts + "]}");
  refusal(K::kJsonSchema, R"({"type":"object","required":["a"],"properties":{"a":{"$ref":"#"}}})");
  refusal(K::kJsonSchema, R"({"type":"array","minItems":2,"maxItems":1})");
  std::string options;
  for (int i = 0; i < 12; ++i) {
    const std::string n = std::to_string(i);
    options += i ? "," : "";
    options += "{\"anyOf\":[{\"required\":[\"a" + n + "\"]},{\"required\":[\"b" + n + "\"]}]}";
  }
  refusal(K::kJsonSchema, "{\"allOf\":[" + options + "]}");
  const auto took = std::chrono::steady_clock::now() - from;
  BOOST_TEST(std::chrono::duration<double>(took).count() < 60);
}

BOOST_AUTO_TEST_CASE(refusals_name_place_and_keyword) {
  using K = ConstraintKind;
  const std::string ahead = "(?=x)";
  BOOST_TEST(refusal(K::kJsonSchema, R"({"properties":{"a/b":{"pattern":")" + ahead + R"("}}})")
                 .find("#/properties/a~1b: pattern") != std::string::npos);
  BOOST_TEST(refusal(K::kJsonSchema, R"({"items":{"format":"regex","type":"string"}})")
                 .find("#/items: format") != std::string::npos);
  BOOST_TEST(refusal(K::kJsonSchema, R"({"not":{"multipleOf":2}})").find("multipleOf") !=
             std::string::npos);
}

}  // namespace
}  // namespace tensorfold::grammar
