// Turns a model folder into one of plain BF16 weights: `tfctl model dequantize`. Works tensor by
// tensor, a bounded number of rows at a time; files appear whole or not at all, config.json last.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace tensorfold {

inline constexpr int64_t kShardBytesMax = int64_t{8} << 30;  // data of one written shard
inline constexpr int64_t kConvertRowsBytesMax = 64 << 20;    // rows in memory, as fp32

struct ConvertReport {
  int converted = 0;  // weights and tables that were quantised
  int copied = 0;     // tensors taken over as they are
  int64_t bytes = 0;  // of tensor data written
};

// Reads folder `in`, writes folder `out` (made when it does not exist; refused when it already
// holds a model or is `in`). F8, FP4 and EXL3 weights and F8 Engram tables become BF16, the rest
// is copied; config.json loses its quantization_config; tokenizer files and the token map are
// copied. `progress` (may be empty) gets one line per shard.
Result<ConvertReport> dequantize_model(const std::string& in, const std::string& out,
                                       const std::function<void(std::string_view)>& progress);

}  // namespace tensorfold
