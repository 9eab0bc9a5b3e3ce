// The rows of the table of weights (see tensor_table.h), written out block by block in the order of
// the forward pass. Sizes come from the configuration alone.
#include "engine/weights/tensor_table.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tensorfold {
namespace {

// Adds rows under a prefix such as "layers.3.".
class Rows {
 public:
  Rows(std::vector<WeightSpec>& table, std::string prefix)
      : table_(table), prefix_(std::move(prefix)) {}

  WeightSpec& matrix(std::string_view name, int64_t out, int64_t in) {
    return add(name, WeightClass::kMatrix, out, in);
  }
  WeightSpec& expert(std::string_view name, int64_t out, int64_t in) {
    return add(name, WeightClass::kExpert, out, in);
  }
  WeightSpec& plain(std::string_view name, int64_t out, int64_t in) {
    return add(name, WeightClass::kPlain, out, in);
  }
  WeightSpec& norm(std::string_view name, int64_t n) {
    WeightSpec& row = add(name, WeightClass::kPlain, n, 1);
    row.vector = true;
    return row;
  }
  WeightSpec& parameter(std::string_view name, int64_t out, int64_t in = 1) {
    WeightSpec& row = add(name, WeightClass::kPlain, out, in);
    row.vector = in == 1;
    row.bare = true;
    return row;
  }

 private:
  WeightSpec& add(std::string_view name, WeightClass weight_class, int64_t out, int64_t in) {
    WeightSpec row;
    row.name = prefix_ + std::string(name);
    row.weight_class = weight_class;
    row.out = out;
    row.in = in;
    table_.push_back(std::move(row));
    return table_.back();
  }
  std::vector<WeightSpec>& table_;
  const std::string prefix_;
};

void add_mixing(Rows& rows, const ModelConfig& c, const std::string& sublayer) {
  const int64_t mixes = int64_t{c.hc_mult} * (c.hc_mult + 2);
  rows.parameter("hc_" + sublayer + "_fn", mixes, int64_t{c.hc_mult} * c.hidden);
  rows.parameter("hc_" + sublayer + "_base", mixes);
  rows.parameter("hc_" + sublayer + "_scale", 3);
}

void add_engram(Rows& rows, const ModelConfig& c) {
  const EngramConfig& e = c.engram;
  rows.matrix("engram.wkv", int64_t{c.hc_mult + 1} * c.hidden, int64_t{e.columns()} * e.row_width);
  rows.parameter("engram.q_weight", c.hc_mult, c.hidden);
  rows.parameter("engram.k_weight", c.hc_mult, c.hidden);
}

void add_compressor(Rows& rows, const ModelConfig& c, int ratio) {
  rows.matrix("attn.compressor.wkv", c.head_dim, c.hidden);
  if (ratio > 1) rows.matrix("attn.compressor.wgate", c.head_dim, c.hidden);
  rows.norm("attn.compressor.norm", c.head_dim);
  rows.matrix("attn.indexer.wk", c.index_head_dim, c.head_dim);
  rows.norm("attn.indexer.k_norm", c.index_head_dim);
}

void add_indexer(Rows& rows, const ModelConfig& c) {
  rows.matrix("attn.indexer.wq_b", int64_t{c.index_heads} * c.index_head_dim, c.q_lora_rank);
  rows.plain("attn.indexer.weights_proj", c.index_heads, c.hidden);
}

void add_attention_in(Rows& rows, const ModelConfig& c) {
  rows.norm("attn_norm", c.hidden);
  rows.matrix("attn.wq_a", c.q_lora_rank, c.hidden);
  rows.norm("attn.q_norm", c.q_lora_rank);
  rows.matrix("attn.wq_b", int64_t{c.heads} * c.head_dim, c.q_lora_rank);
  rows.matrix("attn.wkv", c.head_dim, c.hidden);
  rows.norm("attn.kv_norm", c.head_dim);
}

void add_attention_out(Rows& rows, const ModelConfig& c) {
  rows.parameter("attn.attn_sink", c.heads);
  const int64_t group_inputs = int64_t{c.heads / c.o_groups} * c.head_dim;
  const int64_t latents = int64_t{c.o_groups} * c.o_lora_rank;
  rows.matrix("attn.wo_a", latents, group_inputs).group_rows = c.o_lora_rank;
  rows.matrix("attn.wo_b", c.hidden, latents);
}

void add_moe(Rows& rows, const ModelConfig& c, int experts) {
  rows.norm("ffn_norm", c.hidden);
  rows.plain("ffn.gate", experts, c.hidden);
  rows.parameter("ffn.gate.bias", experts);
  rows.parameter("ffn.gate.bias_vl", experts).optional = true;
  for (int e = 0; e < experts; ++e) {
    const std::string prefix = "ffn.experts." + std::to_string(e) + ".";
    rows.expert(prefix + "w1", c.moe_intermediate, c.hidden);
    rows.expert(prefix + "w3", c.moe_intermediate, c.hidden);
    rows.expert(prefix + "w2", c.hidden, c.moe_intermediate);
  }
  rows.matrix("ffn.shared_experts.w1", c.moe_intermediate, c.hidden);
  rows.matrix("ffn.shared_experts.w3", c.moe_intermediate, c.hidden);
  rows.matrix("ffn.shared_experts.w2", c.hidden, c.moe_intermediate);
}

void add_layer(std::vector<WeightSpec>& table, const ModelConfig& c, int layer) {
  const LayerRole& role = c.roles[static_cast<size_t>(layer)];
  Rows rows(table, "layers." + std::to_string(layer) + ".");
  if (role.engram >= 0) add_engram(rows, c);
  add_mixing(rows, c, "attn");
  add_attention_in(rows, c);
  if (role.owns_kv(layer)) add_compressor(rows, c, role.ratio);
  if (role.owns_index(layer)) add_indexer(rows, c);
  add_attention_out(rows, c);
  add_mixing(rows, c, "ffn");
  add_moe(rows, c, c.routed_experts);
}

void add_stage(std::vector<WeightSpec>& table, const ModelConfig& c, int stage) {
  const DsparkConfig& d = c.dspark;
  Rows rows(table, "mtp." + std::to_string(stage) + ".");
  if (stage == 0) {
    rows.matrix("main_proj", c.hidden, static_cast<int64_t>(d.target_layers.size()) * c.hidden);
    rows.norm("main_norm", c.hidden);
  }
  add_mixing(rows, c, "attn");
  add_attention_in(rows, c);
  add_attention_out(rows, c);
  add_mixing(rows, c, "ffn");
  add_moe(rows, c, d.routed_experts);
  if (stage == d.stages - 1) {
    rows.norm("norm", c.hidden);
    rows.plain("markov_head.embed", c.vocab_size, d.markov_rank);
    rows.plain("markov_head.head", c.vocab_size, d.markov_rank);
    rows.plain("confidence_head.proj", 1, int64_t{c.hidden} + d.markov_rank);
  }
}

}  // namespace

bool kind_allowed(WeightClass weight_class, WeightKind kind) {
  const bool plain =
      kind == WeightKind::kF32 || kind == WeightKind::kF16 || kind == WeightKind::kBf16;
  switch (weight_class) {
    case WeightClass::kMatrix:
      return kind != WeightKind::kFp4;
    case WeightClass::kExpert:
      return true;
    case WeightClass::kPlain:
      return plain;
  }
  return false;
}

std::vector<WeightSpec> weight_table(const ModelConfig& config) {
  std::vector<WeightSpec> table;
  Rows top(table, "");
  top.plain("embed", config.vocab_size, config.hidden);
  for (int layer = 0; layer < config.layers; ++layer) add_layer(table, config, layer);
  top.norm("norm", config.hidden);
  top.matrix("head", config.vocab_size, config.hidden);
  for (int stage = 0; stage < config.dspark.stages; ++stage) add_stage(table, config, stage);
  return table;
}

std::string engram_table_name(const ModelConfig& config, int index) {
  const int layer = config.engram.layers[static_cast<size_t>(index)];
  return "layers." + std::to_string(layer) + ".engram.embed";
}

bool is_vision_tensor(std::string_view tensor_name) {
  constexpr std::array<std::string_view, 2> kPrefixes = {"vision.", "aligner."};
  constexpr std::array<std::string_view, 3> kNames = {"image_start", "image_end", "image_newline"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view p) { return tensor_name.starts_with(p); }) ||
         std::find(kNames.begin(), kNames.end(), tensor_name) != kNames.end();
}

}  // namespace tensorfold
