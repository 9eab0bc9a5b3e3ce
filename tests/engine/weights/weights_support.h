// What the weight tests share: folders that disappear, safetensors files made from tensors or from
// hand-written (also wrong) headers, and small random models in any mix of storage kinds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/weights/safetensors.h"
#include "engine/weights/tensor_table.h"
#include "tests/temp_folder.h"

namespace tensorfold::test {

struct Tensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string bytes;
};

void write_file(const std::string& path, std::string_view bytes);
std::string read_file(const std::string& path);
// header: the JSON. Its true length goes before it.
void write_raw_safetensors(const std::string& path, std::string_view header, std::string_view data);
void write_safetensors(const std::string& path, const std::vector<Tensor>& tensors);

// A model with every part at the smallest legal size: 4 layers (window, ratio 2, ratio 1 twice),
// one Engram layer, one drafter stage, a vocabulary of 500. Legal for 1 and 2 ranks.
std::string small_config();
ModelConfig small_model_config();

// How the model builder stores a weight of a class.
struct StoragePlan {
  std::string matrix = "bf16";  // bf16, f16, f32, fp8, fp8-rows, exl3-<half bits>-<codebook>
  std::string expert = "bf16";  // the same, and fp4
  bool wo_a_slices = false;     // attn.wo_a as one weight for each output group
  bool old_signs = false;       // EXL3 with su and sv in place of suh and svh
  bool tables_fp8 = true;       // Engram tables: F8 rows with scales, else BF16
  uint32_t seed = 1;
};

// Every tensor of the model, in the order of the table of weights.
std::vector<Tensor> model_tensors(const std::string& config, const StoragePlan& plan);
// The tensors of one weight.
std::vector<Tensor> weight_tensors(const WeightSpec& spec, const std::string& kind,
                                   const StoragePlan& plan, uint32_t seed);
// config.json, token map and one safetensors file in `folder` (made).
void write_model(const std::string& folder, const std::string& config,
                 const std::vector<Tensor>& tensors);
// The same in `shards` files with an index.
void write_sharded_model(const std::string& folder, const std::string& config,
                         const std::vector<Tensor>& tensors, size_t shards);

Tensor& tensor_named(std::vector<Tensor>& tensors, std::string_view name);  // exists (checked)

}  // namespace tensorfold::test
