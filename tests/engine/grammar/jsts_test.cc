// The JSON-Schema-Test-Suite (2020-12 and older drafts): what the engine accepts must be valid;
// what it refuses must be invalid; a schema that cannot be enforced must say so. Formats are
// enforced here, so an instance that only the format speaks against counts as invalid: format.json
// is left out.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/base/json.h"
#include "engine/grammar/constraint.h"
#include "engine/grammar/text_match.h"

namespace tensorfold::grammar {
namespace {

struct Counts {
  int right = 0, unsupported = 0, spelling = 0;
  std::vector<std::string> accepted, rejected;  // wrongly
};

// Valid instances that are refused because the engine is stricter on purpose: integers are written
// without a fraction, and numbers within a range without an exponent.
bool other_spelling(const std::string& text) {
  return text.find(".0") != std::string::npos || text.find('e') != std::string::npos;
}

// dialect: the "$schema" of schemas that name none, or empty.
void run_group(const Json& group, const std::string& file, const std::string& dialect,
               Counts& counts) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kJsonSchema;
  Json schema = *group.find("schema");
  if (!dialect.empty() && schema.is_object() && schema.find("$schema") == nullptr)
    schema.set("$schema", Json::string(dialect));
  spec.text = dump_json_compact(schema);
  spec.whitespace = Whitespace::kAny;
  spec.ordered = spec.closed = false;
  const auto compiled = compile_program(spec, -1);
  const bool unsatisfiable = !compiled.ok() && compiled.status().reason() == "unsatisfiable_schema";
  for (const Json& test : group.find("tests")->as_array()) {
    const bool valid = test.find("valid")->as_bool();
    if (!compiled.ok() && !unsatisfiable) {
      ++counts.unsupported;
      continue;
    }
    const std::string text = dump_json_python(*test.find("data"));
    const bool yes = !unsatisfiable && match_text(*compiled->program, text).accepted;
    if (yes == valid) {
      ++counts.right;
      continue;
    }
    const std::string name = file + ": " + group.find("description")->as_string() + ": " +
                             test.find("description")->as_string();
    if (yes) {
      counts.accepted.push_back(name + ": " + text);
    } else if (other_spelling(text)) {
      ++counts.spelling;
    } else {
      counts.rejected.push_back(name + ": " + text);
    }
  }
}

Counts run_folder(const std::string& folder, const std::string& dialect = "") {
  Counts counts;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json" && entry.path().filename() != "format.json")
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::ifstream in(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const auto json = parse_json(text, JsonDialect::kPython);
    if (!json.ok()) continue;  // files that hold lone surrogates on purpose
    for (const Json& group : json->as_array())
      run_group(group, path.filename().string(), dialect, counts);
  }
  BOOST_TEST_MESSAGE(folder << ": right " << counts.right << ", unsupported " << counts.unsupported
                            << ", wrongly accepted " << counts.accepted.size()
                            << ", wrongly rejected " << counts.rejected.size()
                            << " and by spelling " << counts.spelling);
  for (const auto& s : counts.accepted) BOOST_TEST_MESSAGE("accepted: " << s);
  for (const auto& s : counts.rejected) BOOST_TEST_MESSAGE("rejected: " << s);
  return counts;
}

const std::string kSuite = TF_TEST_DATA "/schemas/jsts/tests/";
const std::string kFolder = kSuite + "draft2020-12";

BOOST_AUTO_TEST_CASE(required) {
  const Counts counts = run_folder(kFolder);
  BOOST_TEST(counts.accepted.size() == 0U);
  BOOST_TEST(counts.rejected.size() == 0U);
  BOOST_TEST(counts.spelling <= 12);
  BOOST_TEST(counts.right >= 1000);
}

BOOST_AUTO_TEST_CASE(older_drafts) {
  struct Draft {
    const char *folder, *dialect;
    int right;
  };
  for (const Draft& draft :
       {Draft{"draft4", "http://json-schema.org/draft-04/schema#", 500},
        Draft{"draft7", "http://json-schema.org/draft-07/schema#", 690},
        Draft{"draft2019-09", "https://json-schema.org/draft/2019-09/schema", 220}}) {
    const Counts counts = run_folder(kSuite + draft.folder, draft.dialect);
    BOOST_TEST(counts.accepted.size() == 0U);
    BOOST_TEST(counts.rejected.size() == 0U);
    BOOST_TEST(counts.spelling <= 12);
    BOOST_TEST(counts.right >= draft.right);
  }
}

BOOST_AUTO_TEST_CASE(formats) {
  const Counts counts = run_folder(kFolder + "/optional/format");
  BOOST_TEST(counts.accepted.size() == 0U);
  BOOST_TEST(counts.rejected.size() <= 19U);  // A-labels of host names, quoted local parts
  BOOST_TEST(counts.right >= 600);
}

BOOST_AUTO_TEST_CASE(optional) {
  const Counts counts = run_folder(kFolder + "/optional");
  BOOST_TEST(counts.accepted.size() == 0U);
  BOOST_TEST(counts.rejected.size() <= 1U);
  BOOST_TEST(counts.right >= 150);
}

}  // namespace
}  // namespace tensorfold::grammar
