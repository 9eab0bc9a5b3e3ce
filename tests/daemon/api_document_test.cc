// docs/api.md says what the tables say: its lists of routes, fields and metrics are made from
// them. TF_WRITE_DOCS=1 writes them anew.
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "daemon/api/api.h"
#include "daemon/api/bodies.h"

using namespace tensorfold;
using namespace tensorfold::api;

namespace {

constexpr const char* kDocument = TF_SOURCE_DIR "/docs/api.md";

std::string fields_table(std::span<const ChatField> fields) {
  std::string out = "| field | default | what happens to it |\n|---|---|---|\n";
  for (const auto& [use, before] : {std::pair{FieldUse::kUsed, ""},
                                    {FieldUse::kIgnored, "ignored: "},
                                    {FieldUse::kRefused, "400: "}}) {
    for (const ChatField& field : fields) {
      if (field.use != use) continue;
      out += "| `" + std::string(field.name) + "` | " + std::string(field.fallback) + " | " +
             before + std::string(field.note) + " |\n";
    }
  }
  return out;
}

std::string routes_table() {
  std::string out = "| route | key | answer |\n|---|---|---|\n";
  for (const Route& route : route_table()) {
    out += "| `" + std::string(http::method_name(route.method)) + " " + std::string(route.path) +
           "` | " + (route.open ? "no" : "yes") + " | " + std::string(route.summary) + " |\n";
  }
  return out;
}

std::string metrics_list() {
  std::string out, line;
  for (const std::string& name : metric_names()) {
    const std::string word = "`" + name + "`, ";
    if (line.size() + word.size() > 120) {
      out += line.substr(0, line.size() - 1) + "\n";
      line.clear();
    }
    line += word;
  }
  return out + line.substr(0, line.size() - 2) + ".\n";
}

// The document with every marked part made anew.
std::string made_anew(std::string text) {
  const std::pair<std::string, std::string> parts[] = {
      {"routes", routes_table()},
      {"chat", fields_table(chat_fields())},
      {"completions", fields_table(completion_fields())},
      {"messages", fields_table(messages_fields())},
      {"responses", fields_table(responses_fields())},
      {"tokenize", fields_table(tokenize_fields())},
      {"detokenize", fields_table(detokenize_fields())},
      {"metrics", metrics_list()},
  };
  for (const auto& [name, made] : parts) {
    const std::string begin = "<!-- " + name + " -->\n", end = "<!-- end -->";
    const size_t at = text.find(begin);
    BOOST_REQUIRE_MESSAGE(at != std::string::npos, name);
    const size_t from = at + begin.size();
    const size_t to = text.find(end, from);
    BOOST_REQUIRE(to != std::string::npos);
    text.replace(from, to - from, made);
  }
  return text;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_document_is_made_of_the_tables) {
  std::ostringstream in;
  in << std::ifstream(kDocument).rdbuf();
  const std::string made = made_anew(in.str());
  if (std::getenv("TF_WRITE_DOCS") != nullptr) std::ofstream(kDocument) << made;
  BOOST_TEST((made == in.str() || std::getenv("TF_WRITE_DOCS") != nullptr),
             "docs/api.md is not what the tables say; TF_WRITE_DOCS=1 writes it anew");
}

BOOST_AUTO_TEST_CASE(tables_are_sound) {
  for (const Route& route : route_table()) {
    BOOST_TEST((route.fields != nullptr) == route.json_body());
    BOOST_TEST((find_route(route.method, route.path) == &route));
    if (route.fields == nullptr) continue;
    const auto fields = route.fields();
    for (size_t i = 0; i < fields.size(); ++i) {
      BOOST_TEST((fields[i].read != nullptr) == (fields[i].use == FieldUse::kUsed));
      BOOST_TEST(!fields[i].note.empty());
      const bool used = fields[i].use == FieldUse::kUsed;
      BOOST_TEST((!fields[i].fallback.empty() == used && !fields[i].schema.empty() == used));
      if (used) BOOST_TEST(parse_json(fields[i].schema).ok());
      for (size_t k = 0; k < i; ++k) BOOST_TEST(fields[i].name != fields[k].name);
    }
  }
  BOOST_REQUIRE(parse_json(openapi_document()).ok());
}
