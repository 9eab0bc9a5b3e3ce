// The JSON parser and its writers: what parses must survive writing and reading again.
#include <cstdint>
#include <string_view>

#include "engine/base/check.h"
#include "engine/base/json.h"

using tensorfold::Json;
using tensorfold::JsonDialect;
using tensorfold::parse_json;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto strict = parse_json(text);
  const auto python = parse_json(text, JsonDialect::kPython);
  if (strict.ok()) {
    TF_CHECK(python.ok());
    TF_CHECK(*strict == *python);
  }
  if (python.ok()) {
    const auto again = parse_json(dump_json_python(*python), JsonDialect::kPython);
    TF_CHECK(again.ok());
    TF_CHECK(*again == *python);
    TF_CHECK(parse_json(dump_json_compact(*python)).ok());
  }
  return 0;
}
