// The JSON of a checkpoint: one file's header (declared in safetensors.h) and the index that says
// which file holds which tensor. Internal to engine/weights.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/weights/safetensors.h"

namespace tensorfold {

using IndexMap = std::vector<std::pair<std::string, std::string>>;  // tensor -> file name

// "weight_map" of model.safetensors.index.json, in file order. A tensor named twice is an error.
Status parse_safetensors_index(std::string_view text, IndexMap& index);

}  // namespace tensorfold
