// tokenizer.json from anywhere: refused with a reason, or a tokenizer that gives every text back.
#include <cstdint>
#include <string_view>

#include "engine/base/check.h"
#include "engine/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = tensorfold::Tokenizer::parse(text, "input");
  if (!tokenizer.ok()) {
    TF_CHECK(tokenizer.status().message().starts_with("input: "));
    return 0;
  }
  const std::string_view sample = text.substr(0, 4096);
  TF_CHECK((*tokenizer)->decode((*tokenizer)->encode(sample)) == sample);
  return 0;
}
