// ModelConfig: the dimensions and roles of a DeepSeek-V4.1 model, read from config.json and checked
// once; afterwards every stage trusts it.
//
// Accepts the published (Hugging Face) key names, nested under "text_config" or flat, and the
// names of DeepSeek's inference config (dim, n_layers, ...). Unknown keys are ignored; a missing or
// contradictory one is an error that names it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace tensorfold {

inline constexpr int kLayersMax = 256;

struct YarnConfig {
  double factor = 16;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_positions = 65536;
};

struct EngramConfig {
  std::vector<int> layers;          // layers whose input streams get Engram's addition
  std::vector<int64_t> table_rows;  // one per entry of `layers`
  int max_ngram = 4;                // orders 2..max_ngram
  int heads = 8;                    // columns per order
  int row_width = 256;              // values per table row
  int64_t vocab_size = 0;           // engram_vocab_size: the primes start above it
  int pad_token_id = 2;
  int compressed_vocab_size = 0;
  int columns() const { return (max_ngram - 1) * heads; }
};

struct DsparkConfig {
  int stages = 0;  // mtp.0 .. mtp.(stages-1); 0: no drafter
  int block_size = 5;
  int noise_token_id = 0;
  std::vector<int> target_layers;  // taps: mean over streams of the input of these layers
  int markov_rank = 0;
  int routed_experts = 0;
  int experts_per_token = 0;
};

// What layer L does. Derived from the lists of config.json.
struct LayerRole {
  int ratio = 0;                   // 0: window only; 1 or 2: tokens per global entry
  bool is_decoder = false;         // runs only for rows that need an output (the second half)
  int kv_source = -1;              // layer whose global entries and index keys it reads; -1: none
  int index_source = -1;           // layer whose top-k list it reads; -1: none
  bool builds_candidates = false;  // the candidate source layer
  bool uses_candidates = false;    // index source after the candidate source
  int engram = -1;                 // index into EngramConfig::layers, or -1
  int tap = -1;                    // index into DsparkConfig::target_layers, or -1
  bool owns_kv(int layer) const { return kv_source == layer; }
  bool owns_index(int layer) const { return index_source == layer; }
};

struct ModelConfig {
  std::string architecture;  // "DeepseekV41ForCausalLM"
  int vocab_size = 0;
  int hidden = 0;         // H
  int layers = 0;         // L
  int decoder_start = 0;  // first decoder layer: the last KV source
  int heads = 0;          // query heads
  int head_dim = 0;       // D, rope in the last rope_dim channels
  int rope_dim = 64;
  int q_lora_rank = 0;
  int o_groups = 0;
  int o_lora_rank = 0;
  int window = 128;
  double norm_eps = 1e-20;
  double rope_theta = 10000;            // ratio-0 layers and DSpark
  double compress_rope_theta = 160000;  // ratio > 0, with YaRN
  YarnConfig yarn;
  int64_t max_positions = 0;
  int index_heads = 0;
  int index_head_dim = 0;
  int index_topk = 0;
  int candidate_blocks = 0;
  int candidate_block_size = 0;
  int routed_experts = 0;
  int experts_per_token = 0;
  int shared_experts = 1;
  int moe_intermediate = 0;
  double route_scale = 1.5;
  double gate_temp = 1.0;
  double swiglu_limit = 10.0;
  int hc_mult = 4;
  int hc_sinkhorn_iters = 20;
  double hc_eps = 1e-6;
  int bos_token_id = 0, eos_token_id = 1, pad_token_id = 2;
  int image_token_id = -1;  // -1: text only
  EngramConfig engram;
  DsparkConfig dspark;
  std::vector<LayerRole> roles;  // one per layer

  // Tokens per stored global entry of a KV source; entries of n tokens: n / ratio.
  int ratio(int layer) const { return roles[static_cast<size_t>(layer)].ratio; }
  // Rows before a prompt's end that the decoder must run for exact outputs:
  // window + (window - 1) * (decoder layers - 1).
  int64_t cone_rows() const {
    return window + static_cast<int64_t>(window - 1) * (layers - decoder_start - 1);
  }
};

Result<ModelConfig> parse_model_config(const Json& config);
Result<ModelConfig> load_model_config(const std::string& path);  // errors name file and key

}  // namespace tensorfold
