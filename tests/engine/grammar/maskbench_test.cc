// Real-world schemas with instances, from $TENSORFOLD_TEST_DATA/schemas/maskbench: no invalid
// instance accepted, no valid one refused. Skipped, with the reason, when the folder is absent.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/base/json.h"
#include "engine/grammar/constraint.h"
#include "engine/grammar/text_match.h"

namespace tensorfold::grammar {
namespace {

constexpr int kSkipped = 77;  // what ctest takes for a skip

BOOST_AUTO_TEST_CASE(verdicts) {
  const char* data = std::getenv("TENSORFOLD_TEST_DATA");
  const std::string folder = std::string(data == nullptr ? "" : data) + "/schemas/maskbench";
  if (data == nullptr || !std::filesystem::is_directory(folder)) {
    std::fprintf(stderr, "skipped: $TENSORFOLD_TEST_DATA has no schemas/maskbench\n");
    std::_Exit(kSkipped);
  }
  int files = 0, passed = 0, unsupported = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const auto json = parse_json(text, JsonDialect::kPython);
    if (!json.ok() || json->find("schema") == nullptr) continue;
    ++files;
    ConstraintSpec spec;
    spec.kind = ConstraintKind::kJsonSchema;
    spec.text = dump_json_compact(*json->find("schema"));
    spec.whitespace = Whitespace::kAny;
    spec.ordered = spec.closed = false;
    const auto compiled = compile_program(spec, -1);
    if (!compiled.ok()) {
      ++unsupported;
      continue;
    }
    for (const Json& test : json->find("tests")->as_array()) {
      const std::string reply = dump_json_python(*test.find("data"));
      BOOST_TEST(match_text(*compiled->program, reply).accepted == test.find("valid")->as_bool(),
                 entry.path().filename().string() << ": " << reply.substr(0, 500));
    }
    ++passed;
  }
  BOOST_TEST_MESSAGE("schemas " << files << ", unsupported " << unsupported);
  BOOST_TEST(passed * 100 >= files * 82);
}

}  // namespace
}  // namespace tensorfold::grammar
