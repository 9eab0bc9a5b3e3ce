// Which width every weight of a model gets when it is quantized. Pure: names and sizes in, widths
// out.
//
// Widths given for a kind of weight hold for all of that kind. The rest gets `bits` when that is a
// width of the format (so 2.5 with mul1 is the half width), else whole widths around it, dealt so
// that the average stays within `bits`: every weight starts at floor(bits), and groups get one bit
// more as long as they fit, attention first, then layers near either end of the stack.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/status.h"
#include "engine/weights/exl3_codec.h"

namespace tensorfold::exl3 {

inline constexpr double kHeadBitsDefault = 6;
inline constexpr double kBitsPlain = 16;  // "as it is stored": not quantized

struct BitsRequest {
  double bits = 4;
  std::optional<double> head;       // "head"; kHeadBitsDefault
  std::optional<double> attention;  // "*.attn.*"
  std::optional<double> expert;     // routed experts
  std::optional<double> shared;     // shared experts
  std::optional<double> draft;      // all of "mtp.*"
  Codebook codebook = Codebook::kMul1;
};

struct PlanItem {
  std::string name;         // "layers.3.attn.wo_a.slice.0"
  int64_t out = 0, in = 0;  // logical
  int half_bits = 0;        // set by plan_bits; 0: stays as it is stored
};

// Fails when a wish is not a width (naming it), or outside 1..8.
Status plan_bits(const BitsRequest& request, std::span<PlanItem> items);

// Bytes of a weight as EXL3: trellis, suh and svh of the padded size.
int64_t exl3_bytes(int64_t out, int64_t in, int half_bits);

}  // namespace tensorfold::exl3
