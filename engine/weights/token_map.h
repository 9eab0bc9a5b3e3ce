// The Engram token map: token id -> compressed id. A model folder may carry its own
// (engram_token_map.i32, little-endian int32, one per token); for the V4.1 vocabulary the program
// carries one, built by packaging/engram-map/build_map.py.
//
// Pure functions and one constant table; a map never changes once read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/model/config.h"

namespace tensorfold {

inline constexpr const char* kTokenMapFileName = "engram_token_map.i32";

// The packed form: "TFEMAP1\n", u32 tokens, u32 classes, one bit per token (set: it begins the next
// class), then the 3-byte compressed id of each token whose bit is not set; little-endian.
Result<std::vector<int32_t>> unpack_token_map(std::span<const std::byte> packed);

// The packed map of the V4.1 vocabulary: 129,280 tokens, 99,092 classes.
std::span<const std::byte> builtin_token_map();

// The map for `config`: the folder's own file when there is one, else the program's when its sizes
// are the configuration's. Empty for a model without Engram. Errors name the file.
Result<std::vector<int32_t>> load_token_map(const ModelConfig& config, const std::string& folder);

// Whether `map` fits the configuration: sizes, ids in range. `where` begins the message.
Status check_token_map(const ModelConfig& config, std::span<const int32_t> map,
                       const std::string& where);

}  // namespace tensorfold
