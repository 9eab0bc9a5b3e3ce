// The ordered JSON value: parsing, the two dialects, bounds, errors by offset, and both writers.
#include "engine/base/json.h"

#include <boost/test/unit_test.hpp>
#include <limits>
#include <string>

namespace tensorfold {
namespace {

std::string python(std::string_view text) {
  const Result<Json> parsed = parse_json(text, JsonDialect::kPython);
  BOOST_REQUIRE_MESSAGE(parsed.ok(), text << ": " << parsed.status().message());
  return dump_json_python(*parsed);
}

std::string error(std::string_view text, JsonDialect dialect = JsonDialect::kStrict) {
  const Result<Json> parsed = parse_json(text, dialect);
  BOOST_REQUIRE_MESSAGE(!parsed.ok(), "parsed: " << text);
  BOOST_TEST((parsed.status().code() == StatusCode::kInvalidArgument));
  return parsed.status().message();
}

std::string nested(int depth) {
  const auto n = static_cast<size_t>(depth);
  return std::string(n, '[') + std::string(n, ']');
}

BOOST_AUTO_TEST_CASE(numbers_keep_their_kind_and_every_digit) {
  BOOST_TEST(python("[1, 1.0, -0, -0.0, 1.50, 1E5, 1e21, 1e-7]") ==
             "[1, 1.0, 0, -0.0, 1.5, 100000.0, 1e+21, 1e-07]");
  BOOST_TEST(python("123456789012345678901234567890123456789") ==
             "123456789012345678901234567890123456789");
  BOOST_TEST(python("-99999999999999999999") == "-99999999999999999999");
  BOOST_TEST(python("[1e400, -1e400, 1e-400, -1e-400]") == "[Infinity, -Infinity, 0.0, -0.0]");
  BOOST_TEST(python("[0.0001, 0.00001, 1e15, 1e16, 123456789012345680.0]") ==
             "[0.0001, 1e-05, 1000000000000000.0, 1e+16, 1.2345678901234568e+17]");
  BOOST_TEST(python("[5e-324, 1.7976931348623157e308, 9007199254740993.0]") ==
             "[5e-324, 1.7976931348623157e+308, 9007199254740992.0]");
  const std::string zeros(400, '0');
  BOOST_TEST(python("0." + zeros + "1e401") == "1.0");  // the exponent alone says nothing
  BOOST_TEST(python("1" + zeros + "e-400") == "1.0");
  BOOST_TEST(python("0." + zeros + "1") == "0.0");
  BOOST_TEST(python("0e99999999999999999999") == "0.0");
}

BOOST_AUTO_TEST_CASE(integers_and_floats_are_read_back_as_such) {
  const Json one = *parse_json("1");
  const Json one_float = *parse_json("1.0");
  BOOST_TEST(one.is_int());
  BOOST_TEST(!one_float.is_int());
  BOOST_TEST((one != one_float));
  BOOST_TEST(one.as_int64().value() == 1);
  BOOST_TEST(!one_float.as_int64().has_value());
  BOOST_TEST(parse_json("9223372036854775807")->as_int64().value() ==
             std::numeric_limits<int64_t>::max());
  BOOST_TEST(!parse_json("9223372036854775808")->as_int64().has_value());
  BOOST_TEST(parse_json("9223372036854775808")->as_double() == 9223372036854775808.0);
  BOOST_TEST(Json::integer_text("-000").as_string() == "0");
  BOOST_TEST(Json::integer_text("-0042").as_string() == "-42");
}

BOOST_AUTO_TEST_CASE(members_keep_their_order_and_a_repeated_key_its_first_place) {
  BOOST_TEST(python(R"({"b": 1, "a": 2, "b": {"x": []}})") == R"({"b": {"x": []}, "a": 2})");
  std::string text = "{", wanted = "{";
  for (int i = 0; i < 100; ++i) {  // enough keys to look them up by hash
    text += '"' + std::to_string(i) + "\": 0, ";
    wanted += (i > 0 ? ", \"" : "\"") + std::to_string(i) + "\": " + (i == 40 ? "true" : "0");
  }
  BOOST_TEST(python(text + "\"40\": true}") == wanted + "}");
}

BOOST_AUTO_TEST_CASE(strings_are_escaped_only_where_they_must_be) {
  BOOST_TEST(python(R"("\"\\\/\b\f\n\r\t\u0001\u001f\u007f\u2028é😀")") ==
             "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\u2028é😀\"");
  BOOST_TEST(python(R"(["\ud83d\ude00", "\u00e9", "\uFFFF", "\u0000"])") ==
             "[\"😀\", \"é\", \"\uFFFF\", \"\\u0000\"]");
}

BOOST_AUTO_TEST_CASE(a_lone_surrogate_becomes_the_replacement_character) {
  for (const JsonDialect dialect : {JsonDialect::kStrict, JsonDialect::kPython}) {
    BOOST_TEST(parse_json(R"("\ud800")", dialect)->as_string() == "\uFFFD");
    BOOST_TEST(parse_json(R"("\udc00x")", dialect)->as_string() == "\uFFFDx");
    BOOST_TEST(parse_json(R"("\ud800\ud83d\ude00")", dialect)->as_string() == "\uFFFD😀");
    BOOST_TEST(parse_json(R"("\ud800\n")", dialect)->as_string() == "\uFFFD\n");
    BOOST_TEST(parse_json(R"("\ud800A")", dialect)->as_string() == "\uFFFDA");
  }
}

BOOST_AUTO_TEST_CASE(only_the_python_dialect_knows_nan_and_infinity) {
  BOOST_TEST(python("[NaN, Infinity, -Infinity]") == "[NaN, Infinity, -Infinity]");
  error("NaN");
  error("[Infinity]");
  error("-Infinity");
  error("nan", JsonDialect::kPython);
  error("+Infinity", JsonDialect::kPython);
  const Json values = *parse_json("[NaN, Infinity]", JsonDialect::kPython);
  BOOST_TEST(dump_json_compact(values) == "[null,null]");
  BOOST_TEST((values == *parse_json("[NaN, Infinity]", JsonDialect::kPython)));
}

BOOST_AUTO_TEST_CASE(errors_name_the_byte) {
  const struct {
    std::string text, where;
  } cases[] = {
      {"", "at byte 0"},
      {"  ", "at byte 2"},
      {"[1,]", "at byte 3"},
      {"[1 2]", "at byte 3"},
      {"{\"a\" 1}", "at byte 5"},
      {"{\"a\":1,}", "at byte 7"},
      {"{a:1}", "at byte 1"},
      {"01", "at byte 1"},
      {"1.", "at byte 2"},
      {"1e", "at byte 2"},
      {"-", "at byte 0"},
      {".5", "at byte 0"},
      {"tru", "at byte 0"},
      {"nul", "at byte 0"},
      {"\"abc", "at byte 4"},
      {"\"a\nb\"", "at byte 2"},
      {"\"\\x\"", "at byte 1"},
      {"\"\\u12g4\"", "at byte 1"},
      {"[\"a\xFF\"]", "at byte 3"},
      {"{} {}", "at byte 3"},
      {"\xEF\xBB\xBF{}", "at byte 0"},
      {"\"\xED\xA0\x80\"", "at byte 1"},
  };
  for (const auto& c : cases) {
    const std::string message = error(c.text);
    BOOST_TEST(message.find(c.where) != std::string::npos, c.text << " gave: " << message);
  }
}

BOOST_AUTO_TEST_CASE(depth_is_bounded) {
  BOOST_TEST(parse_json(nested(kJsonDepthMax)).ok());
  BOOST_TEST(error(nested(kJsonDepthMax + 1)).find("deeper") != std::string::npos);
  BOOST_TEST(error(std::string(1 << 20, '[')).find("deeper") != std::string::npos);
  std::string objects;
  for (int i = 0; i <= kJsonDepthMax; ++i) objects += "{\"a\":";
  BOOST_TEST(error(objects).find("deeper") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(writers_differ_in_spaces_only) {
  const Json value = *parse_json(R"({"a":[1,2.5,"x"],"b":{},"c":[],"d":null})");
  BOOST_TEST(dump_json_python(value) == R"({"a": [1, 2.5, "x"], "b": {}, "c": [], "d": null})");
  BOOST_TEST(dump_json_compact(value) == R"({"a":[1,2.5,"x"],"b":{},"c":[],"d":null})");
}

BOOST_AUTO_TEST_CASE(members_can_be_found_and_set) {
  Json value = *parse_json(R"({"a": 1, "b": 2})");
  value.set("a", Json::string("new"));
  value.set("c", Json::boolean(true));
  BOOST_TEST(dump_json_compact(value) == R"({"a":"new","b":2,"c":true})");
  BOOST_TEST(value.find("c")->as_bool());
  BOOST_TEST(value.find("d") == nullptr);
  BOOST_TEST(Json::null().find("a") == nullptr);
}

BOOST_AUTO_TEST_CASE(equality_is_exact) {
  const auto same = [](std::string_view a, std::string_view b) {
    return *parse_json(a) == *parse_json(b);
  };
  BOOST_TEST(same("{\"a\":1,\"b\":[2]}", " {\"a\": 1, \"b\": [ 2 ]} "));
  BOOST_TEST(!same("{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}"));
  BOOST_TEST(!same("0.0", "-0.0"));
  BOOST_TEST(!same("0", "false"));
  BOOST_TEST(!same("\"1\"", "1"));
  BOOST_TEST(!same("null", "[]"));
}

}  // namespace
}  // namespace tensorfold
