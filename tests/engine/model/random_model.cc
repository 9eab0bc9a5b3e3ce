#include "tests/engine/model/random_model.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include "engine/model/config.h"
#include "engine/weights/engram_constants.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/tensor_table.h"

namespace tensorfold::test {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // Roughly normal with deviation 1: three uniform numbers.
  float normal() {
    float sum = 0;
    for (int i = 0; i < 3; ++i) sum += static_cast<float>(next() >> 40) / 8388608.0f - 1.0f;
    return sum;
  }

 private:
  uint64_t next() {  // SplitMix64
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

std::string config_text(const RandomShape& s, int64_t engram_rows, int engram_layers) {
  std::ostringstream o;
  o << R"({"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41",
  "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 298,
  "text_config": {"qk_rope_head_dim": 64, "max_position_embeddings": 4096, "rope_theta": 10000,
  "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
  "original_max_position_embeddings": 65536}, "compress_rope_theta": 160000,
  "rms_norm_eps": 1e-20, "swiglu_limit": 10.0, "n_shared_experts": 1,
  "routed_scaling_factor": 1.5, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06,
  "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
  "num_key_value_heads": 1, "engram_max_ngram_size": 3, "engram_vocab_size": 50,
  "engram_n_heads": 2, "engram_head_dim": 32, "engram_pad_token_id": 2,
  "engram_compressed_vocab_size": 200, "dspark_block_size": 5, "dspark_noise_token_id": 299,
  "dspark_markov_rank": 32, "dspark_n_routed_experts": 4, "dspark_num_experts_per_tok": 2)";
  const auto number = [&](const char* key, int64_t v) { o << ", \"" << key << "\": " << v; };
  const auto list = [&](const char* key, const std::string& v) {
    o << ", \"" << key << "\": [" << v << "]";
  };
  number("vocab_size", s.vocab);
  number("hidden_size", s.hidden);
  number("moe_intermediate_size", s.intermediate);
  number("num_hidden_layers", s.layers);
  number("num_attention_heads", s.heads);
  number("head_dim", s.head_dim);
  number("q_lora_rank", s.q_lora);
  number("o_lora_rank", s.o_lora);
  number("o_groups", s.o_groups);
  number("n_routed_experts", s.experts);
  number("num_experts_per_tok", s.experts_per_token);
  number("sliding_window", s.window);
  list("compress_ratios", s.ratios);
  list("kv_source_layer_ids", s.kv_sources);
  list("index_source_layer_ids", s.index_sources);
  number("index_n_heads", s.index_heads);
  number("index_head_dim", s.index_dim);
  number("index_topk", s.topk);
  number("candidate_source_layer_id", s.candidate_source);
  number("candidate_topk_blocks", s.candidate_blocks);
  number("candidate_block_size", s.candidate_size);
  list("engram_layer_ids", s.engram_layers);
  list("engram_num_embeddings", std::to_string(engram_rows));
  number("num_nextn_predict_layers", s.drafter_stages);
  list("dspark_target_layer_ids", s.taps);
  o << "}}";
  BOOST_REQUIRE_EQUAL(engram_layers, 1);
  return o.str();
}

ModelConfig parse(const std::string& text) {
  Result<Json> json = parse_json(text);
  BOOST_REQUIRE_MESSAGE(json.ok(), json.status().message());
  Result<ModelConfig> config = parse_model_config(*json);
  BOOST_REQUIRE_MESSAGE(config.ok(), config.status().message());
  return *config;
}

void append_values(SafetensorsWriter& writer, const WeightSpec& spec, Random& random) {
  const float spread =
      spec.vector ? 0.1f : 1.0f / std::sqrt(static_cast<float>(spec.in > 1 ? spec.in : 1));
  const bool around_one = spec.name.ends_with("norm") || spec.name.ends_with("_scale") ||
                          spec.name.ends_with("_weight");
  std::vector<float> values(static_cast<size_t>(spec.out * spec.in));
  for (float& v : values) v = random.normal() * spread + (around_one ? 1.0f : 0.0f);
  if (spec.bare) {
    BOOST_REQUIRE(writer.append(std::as_bytes(std::span(values))).ok());
    return;
  }
  std::vector<uint16_t> bits;
  for (const float v : values) bits.push_back(fp32_to_bf16(v));
  BOOST_REQUIRE(writer.append(std::as_bytes(std::span(bits))).ok());
}

}  // namespace

void write_random_model(const std::string& folder, const RandomShape& shape, uint64_t seed) {
  // The table's size follows from the other Engram numbers.
  ModelConfig config = parse(config_text(shape, 1000, 1));
  config.engram.table_rows.clear();
  int64_t engram_rows = 0;
  for (int64_t guess = 100; guess < 2000 && engram_rows == 0; ++guess) {
    config.engram.table_rows = {guess};
    const Result<EngramConstants> constants = engram_constants(config.engram);
    if (constants.ok()) engram_rows = constants->layers[0].rows;
  }
  BOOST_REQUIRE_GT(engram_rows, 0);
  const std::string text = config_text(shape, engram_rows, 1);
  config = parse(text);
  std::ofstream(folder + "/config.json") << text;

  const std::vector<WeightSpec> specs = weight_table(config);
  std::vector<SafetensorsWriter::Declaration> tensors;
  for (const WeightSpec& s : specs) {
    std::vector<int64_t> dims =
        s.vector ? std::vector<int64_t>{s.out} : std::vector<int64_t>{s.out, s.in};
    tensors.push_back({s.bare ? s.name : s.name + ".weight", s.bare ? DType::kF32 : DType::kBf16,
                       std::move(dims)});
  }
  WeightSpec table;
  table.name = engram_table_name(config, 0);
  table.out = engram_rows;
  table.in = config.engram.row_width;
  tensors.push_back({table.name + ".weight", DType::kBf16, {table.out, table.in}});
  auto writer = SafetensorsWriter::create(folder + "/model.safetensors", tensors);
  BOOST_REQUIRE_MESSAGE(writer.ok(), writer.status().message());
  Random random(seed);
  for (const WeightSpec& s : specs) append_values(**writer, s, random);
  append_values(**writer, table, random);
  BOOST_REQUIRE((*writer)->commit().ok());

  std::vector<int32_t> map;
  for (int32_t id = 0; id < shape.vocab; ++id) map.push_back(id % 200);
  std::ofstream(folder + "/engram_token_map.i32", std::ios::binary)
      .write(reinterpret_cast<const char*>(map.data()),
             static_cast<std::streamsize>(map.size() * 4));
}

}  // namespace tensorfold::test
