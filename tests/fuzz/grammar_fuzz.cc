// Schema, regular expression and EBNF compilers: any text ends in a program or a Status, and a
// program's start is never a dead end. The first byte chooses the compiler.
#include <cstdint>
#include <string>

#include "engine/base/check.h"
#include "engine/grammar/constraint.h"
#include "engine/grammar/frames.h"
#include "engine/grammar/text_match.h"

using namespace tensorfold::grammar;  // NOLINT: a program of one page

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 4096) return 0;
  ConstraintSpec spec;
  spec.kind = data[0] % 3 == 0   ? ConstraintKind::kJsonSchema
              : data[0] % 3 == 1 ? ConstraintKind::kRegex
                                 : ConstraintKind::kEbnf;
  spec.text.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto compiled = compile_program(spec, kTextMarkerId);
  if (!compiled.ok()) {
    TF_CHECK(!compiled.status().message().empty());
    return 0;
  }
  Frames frames(*compiled->program);
  TF_CHECK(!frames.start().empty());
  (void)match_text(*compiled->program, spec.text);
  return 0;
}
