// Masks of any schema, expression or grammar: every token of a small vocabulary is in the mask of a
// state just when a step by it, byte by byte, leads on. The first byte chooses the compiler; then
// the form, a NUL, and bytes that choose the tokens of a reply.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/check.h"
#include "engine/grammar/constraint.h"
#include "tests/engine/grammar/small_vocabulary.h"

using namespace tensorfold;           // NOLINT: a program of one page
using namespace tensorfold::grammar;  // NOLINT

namespace {

constexpr size_t kStepsMax = 24;
constexpr ConstraintKind kKinds[] = {ConstraintKind::kJsonSchema, ConstraintKind::kRegex,
                                     ConstraintKind::kEbnf};
constexpr Whitespace kSpaces[] = {Whitespace::kPretty, Whitespace::kAny, Whitespace::kCompact};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<const VocabImage> kVocab = vocabulary();
  if (size == 0 || size > 4096) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t nul = rest.find('\0');
  if (nul == std::string_view::npos) return 0;
  ConstraintSpec spec;
  spec.kind = kKinds[data[0] % 3];
  spec.whitespace = kSpaces[data[0] / 3 % 3];
  spec.ordered = spec.closed = data[0] >= 128;
  spec.text.assign(rest.substr(0, nul));
  const auto source = compile_constraint(spec, kVocab);
  if (!source.ok()) return 0;
  MaskState state = (*source)->start();
  std::vector<uint32_t> bits(kVocab->words());
  std::vector<int32_t> allowed;
  for (const char choice : rest.substr(nul + 1).substr(0, kStepsMax)) {
    const bool some = (*source)->mask(state, bits);
    allowed.clear();
    for (int32_t id = 0; id < kVocab->spec().mask_tokens; ++id) {
      const bool in_mask = ((bits[static_cast<size_t>(id) / 32] >> (id % 32)) & 1) != 0;
      TF_CHECK_EQ(in_mask, (*source)->next(state, id) != kMaskDead);
      if (in_mask && id >= kFirst) allowed.push_back(id);
      TF_CHECK(some || !in_mask);
    }
    if (allowed.empty()) break;
    state = (*source)->next(state, allowed[static_cast<uint8_t>(choice) % allowed.size()]);
  }
  return 0;
}
