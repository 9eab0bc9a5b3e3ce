// The binary form of step plans: what decodes must encode to the same bytes.
#include <cstdint>
#include <cstring>
#include <span>

#include "engine/base/check.h"
#include "engine/sched/step_plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto plan = tensorfold::decode_step_plan(bytes);
  if (!plan.ok()) return 0;
  const auto again = tensorfold::encode_step_plan(*plan);
  TF_CHECK_EQ(again.size(), size);
  TF_CHECK(size == 0 || std::memcmp(again.data(), data, size) == 0);
  TF_CHECK_EQ(tensorfold::step_plan_digest(*plan).size(), 32U);
  return 0;
}
