// The grammar of tool calls in the model's markup: any parameters end in a program or a Status, a
// program's start is never a dead end, and any text runs through it. First byte: the choices;
// then the parameters' schema, a NUL, and the text.
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/check.h"
#include "engine/base/json.h"
#include "engine/grammar/constraint.h"
#include "engine/grammar/frames.h"
#include "engine/grammar/text_match.h"

using namespace tensorfold::grammar;  // NOLINT: a program of one page

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 4096) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t nul = rest.find('\0');
  const auto parameters = tensorfold::parse_json(std::string(rest.substr(0, nul)));
  if (!parameters.ok()) return 0;
  ConstraintSpec spec;
  const unsigned choices = data[0];
  spec.tools.push_back({"get", *parameters, (choices & 1U) != 0});
  spec.tools.push_back({"set_value", {}, false});
  spec.tool_choice = (choices & 2U) != 0   ? ToolChoice::kRequired
                     : (choices & 4U) != 0 ? ToolChoice::kNamed
                                           : ToolChoice::kAuto;
  spec.named = "get";
  spec.parallel = (choices & 8U) != 0;
  spec.markup = (choices & 16U) != 0 ? ToolMarkup::kV4 : ToolMarkup::kV41;
  const auto compiled = compile_program(spec, kTextMarkerId);
  if (!compiled.ok()) {
    TF_CHECK(!compiled.status().message().empty());
    return 0;
  }
  Frames frames(*compiled->program);
  TF_CHECK(!frames.start().empty());
  if (nul != std::string_view::npos)
    (void)match_text(*compiled->program, std::string(rest.substr(nul + 1)));
  return 0;
}
