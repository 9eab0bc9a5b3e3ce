// quantize_pack(): a model folder in any readable format -> a model folder in EXL3.
//
// Every projection of the table of weights becomes EXL3 (attn.wo_a one layer per output group,
// "attn.wo_a.slice.N"); embeddings, norms, the router, hc_*, the Markov and confidence heads and
// everything unknown to the table are copied as they are stored. A projection so small that its
// padding to 128 would make it larger than 16-bit values stays as it is. Engram tables are copied;
// tables in 16 or 32 bits become F8_E4M3 rows with a UE8M0 scale per 32 values.
//
// The folder appears under its name only when it is whole and has been read back: work happens in
// "OUT.partial.XXXXXX" beside it, which a failure removes. Uses as many threads as asked for, one
// weight at a time; memory: a few times the largest weight.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/weights/quantize.h"
#include "engine/weights/quantize_plan.h"

namespace tensorfold::exl3 {

inline constexpr int64_t kShardBytesMax = int64_t{8} << 30;         // one file of weights
inline constexpr int64_t kCopiedFileBytesMax = int64_t{256} << 20;  // one file beside the weights

struct PackRequest {
  std::string in, out;       // folders; `out` must not exist
  std::string moments_path;  // file of input second moments, or empty
  BitsRequest bits;
  OutScales out_scales = OutScales::kAuto;
  int threads = 1;
  int64_t shard_bytes_max = kShardBytesMax;
};

struct PackedWeight {
  std::string name;
  int64_t out = 0, in = 0;
  int half_bits = 0;           // 0: kept as it was stored
  double bits_per_weight = 0;  // scales, signs and padding included
  double nmse = 0;             // ||W - W'||^2 / ||W||^2
  bool used_moments = false;
};

struct PackReport {
  std::vector<PackedWeight> weights;  // projections, in the order of the table
  int copied_tensors = 0, converted_tables = 0, files = 0;
  double average_bits = 0;  // over quantized weights without the head, as in config.json
  int64_t bytes_in = 0, bytes_out = 0;  // of all tensors
};

// progress: called after each projection, from the calling thread.
Result<PackReport> quantize_pack(const PackRequest& request,
                                 const std::function<void(const PackedWeight&)>& progress = {});

}  // namespace tensorfold::exl3
