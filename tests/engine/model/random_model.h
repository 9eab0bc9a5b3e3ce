// A model folder with random BF16 weights of a given shape, for tests that need other dimensions
// than the recorded model has.
#pragma once

#include <cstdint>
#include <string>

namespace tensorfold::test {

struct RandomShape {
  int hidden = 128, heads = 4, head_dim = 64, q_lora = 64, o_groups = 2, o_lora = 64;
  int window = 32, topk = 8, candidate_blocks = 4, candidate_size = 4;
  int index_heads = 2, index_dim = 64;
  int experts = 6, experts_per_token = 2, intermediate = 64;
  std::string ratios = "0, 0, 2, 2, 1, 1, 1, 0, 0";  // layers, then drafter stages
  int layers = 7;
  std::string kv_sources = "2, 4", index_sources = "2, 4, 5", taps = "4, 5, 6";
  int candidate_source = 4;
  std::string engram_layers = "1";
  int drafter_stages = 2;
  int vocab = 300;
};

// Writes config.json, model.safetensors and the token map into `folder`, which exists.
void write_random_model(const std::string& folder, const RandomShape& shape, uint64_t seed);

}  // namespace tensorfold::test
