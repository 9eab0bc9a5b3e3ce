// The table of weights: which weights a model of a given configuration has, how large each is and
// in which kinds it may be stored. The loader, `tfctl model inspect`, the prepared image and the
// report of missing and unknown tensors all derive from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/config.h"
#include "engine/weights/weight.h"

namespace tensorfold {

enum class WeightClass : unsigned char {
  kMatrix,  // a projection: any kind but fp4
  kExpert,  // a projection of a routed expert: any kind
  kPlain,   // read as values: f32, f16 or bf16
};

struct WeightSpec {
  std::string name;  // without ".weight" or a quantisation suffix
  WeightClass weight_class = WeightClass::kPlain;
  int64_t out = 0, in = 0;  // a vector has in = 1
  bool vector = false;      // stored with one dimension
  bool bare = false;        // stored under its own name, without ".weight"
  bool optional = false;    // may be missing (ffn.gate.bias_vl)
  int group_rows = 0;       // attn.wo_a: rows of one o_group; may be stored as slices. Else 0
};

bool kind_allowed(WeightClass weight_class, WeightKind kind);

// Every weight but the Engram tables, in the order in which a forward pass meets them.
std::vector<WeightSpec> weight_table(const ModelConfig& config);

// "layers.1.engram.embed": the Engram table before EngramConfig::layers[index].
std::string engram_table_name(const ModelConfig& config, int index);

// Parts of the checkpoint that text does not use (the vision tower and its tokens).
bool is_vision_tensor(std::string_view tensor_name);

}  // namespace tensorfold
