// Loading a model, its buffers, and what needs no layer loop (engine/model/model_impl.h).
#include "engine/model/model_impl.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/formats.h"
#include "kernels/rope.h"

namespace tensorfold {

Result<std::unique_ptr<Model>> Model::load(const ModelOptions& options, Collective& collective) {
  return ForwardModel::load(options, collective);
}

Result<std::unique_ptr<Model>> ForwardModel::load(const ModelOptions& options,
                                                  Collective& collective) {
  std::unique_ptr<ForwardModel> model(new ForwardModel(options, collective));
  WeightSourceOptions source_options;
  source_options.model_path = options.model_path;
  source_options.engram_path = options.engram_path;
  source_options.prepared_path = options.prepared_path;
  source_options.rank = collective.rank();
  source_options.world_size = collective.world_size();
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                      WeightSource::open(source_options));
  TF_RETURN_IF_ERROR(model->prepare(*source));
  return std::unique_ptr<Model>(std::move(model));
}

Status ForwardModel::prepare(const WeightSource& source) {
  config_ = source.config();
  part_ = source.part();
  fingerprint_ = source.fingerprint();
  TF_RETURN_IF_ERROR(check_dimensions());
  backend_ = &cpu_backend();
  TF_ASSIGN_OR_RETURN(stream_, make_cpu_stream(options_.threads));
  TF_ASSIGN_OR_RETURN(weights_, load_model_weights(source));
  const std::span<const int32_t> map = source.engram_token_map();
  token_map_.assign(map.begin(), map.end());
  if (!config_.engram.layers.empty()) {
    TF_ASSIGN_OR_RETURN(engram_, EngramRows::open(source));
  }
  TF_ASSIGN_OR_RETURN(
      const CacheLayout layout,
      make_cache_layout(config_, options_.slots, options_.context, options_.pool_blocks));
  TF_ASSIGN_OR_RETURN(SequenceCache cache, SequenceCache::create(layout));
  cache_ = std::make_unique<SequenceCache>(std::move(cache));
  RopeYarn yarn;
  yarn.factor = config_.yarn.factor;
  yarn.beta_fast = config_.yarn.beta_fast;
  yarn.beta_slow = config_.yarn.beta_slow;
  yarn.original_positions = config_.yarn.original_positions;
  freqs_plain_ = rope_frequencies(config_.rope_theta, config_.rope_dim, nullptr);
  freqs_yarn_ = rope_frequencies(config_.compress_rope_theta, config_.rope_dim, &yarn);
  index_weight_scale_ = static_cast<float>(
      1.0 / std::sqrt(static_cast<double>(config_.index_head_dim) * config_.index_heads));
  return allocate_buffers();
}

// What the CPU operations ask of a model's shape beyond what the configuration checks.
Status ForwardModel::check_dimensions() const {
  struct Row {
    const char* key;
    int64_t value, multiple, largest;
  };
  const ModelConfig& c = config_;
  const Row rows[] = {
      {"hidden_size", c.hidden, 32, 1 << 20},
      {"head_dim", c.head_dim, 32, kRowWidthMax},
      {"qk_rope_head_dim", c.rope_dim, 2, c.head_dim},
      {"q_lora_rank", c.q_lora_rank, 32, 1 << 20},
      {"o_lora_rank", c.o_lora_rank, 32, 1 << 20},
      {"index_head_dim", c.index_head_dim, 32, kRowWidthMax},
      {"qk_rope_head_dim (of index_head_dim)", c.rope_dim, 2, c.index_head_dim},
      {"moe_intermediate_size", c.moe_intermediate, 32, 1 << 20},
      {"hc_mult", c.hc_mult, 1, kHcMax},
      {"num_experts_per_tok", c.experts_per_token, 1, kExpertsPerTokenMax},
      {"dspark_num_experts_per_tok", c.dspark.experts_per_token, 1, kExpertsPerTokenMax},
      {"dspark_markov_rank", c.dspark.markov_rank, 32, 1 << 16},
  };
  for (const Row& r : rows)
    if (r.value % r.multiple != 0 || r.value > r.largest)
      return unsupported(std::string("config.json: ") + r.key + " is " + std::to_string(r.value) +
                         ", not a multiple of " + std::to_string(r.multiple) + " up to " +
                         std::to_string(r.largest));
  if (options_.rows_max < 1 || options_.rows_max > kStepRowsMax)
    return invalid_argument("rows of a step must be 1.." + std::to_string(kStepRowsMax));
  return ok_status();
}

int64_t ForwardModel::workspace_bytes() const {
  const ModelConfig& c = config_;
  const int rows = options_.rows_max, lanes = stream_->lanes();
  const auto heads = static_cast<int>(part_.heads.size());
  const auto channels = static_cast<int>(part_.intermediate.size());
  const int64_t tap = tap_width();
  const int64_t widest = std::max<int64_t>(
      {c.hidden, tap, int64_t{c.engram.columns()} * c.engram.row_width, c.q_lora_rank,
       int64_t{c.heads / c.o_groups} * c.head_dim, int64_t{c.o_groups} * c.o_lora_rank});
  const int experts = std::max(c.routed_experts, c.dspark.routed_experts);
  const int topk = std::max(c.experts_per_token, c.dspark.experts_per_token);
  return std::max<int64_t>({project_workspace_bytes(rows, static_cast<int>(widest)),
                            hc_step_workspace_bytes(rows, c.hidden, c.hc_mult),
                            attention_append_workspace_bytes(rows, c.head_dim, c.index_head_dim),
                            index_select_workspace_bytes(c.index_heads, c.index_head_dim,
                                                         cache_->layout().context, lanes),
                            attention_core_workspace_bytes(heads, c.head_dim, lanes),
                            moe_experts_workspace_bytes(rows, c.hidden, channels, experts, topk),
                            head_logits_workspace_bytes(rows, c.hidden),
                            markov_step_workspace_bytes(rows, c.dspark.markov_rank, c.hidden)});
}

template <typename T>
Status ForwardModel::take(T*& pointer, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T)) + 64;
  memory_.push_back(allocate_zeroed<std::byte>(bytes));
  std::byte* p = memory_.back().get();
  if (p == nullptr)
    return unavailable("no memory for " + std::to_string(bytes) + " bytes of activations");
  p += (64 - reinterpret_cast<uintptr_t>(p) % 64) % 64;
  pointer = reinterpret_cast<T*>(p);
  return ok_status();
}

Status ForwardModel::allocate_buffers() {
  const ModelConfig& c = config_;
  const int block = c.dspark.stages > 0 ? c.dspark.block_size : 0;
  options_.rows_max = std::max(options_.rows_max, options_.slots * std::max(block, 1));
  const int64_t r = options_.rows_max, n = c.hc_mult, h = c.hidden, d = c.head_dim;
  const int64_t q_width = part_.heads.size() * d;
  const int64_t experts = std::max(c.routed_experts, c.dspark.routed_experts);
  const int64_t topk = std::max(c.experts_per_token, c.dspark.experts_per_token);
  TF_RETURN_IF_ERROR(take(b_.streams, r * n * h));
  TF_RETURN_IF_ERROR(take(b_.pre[0], r * n));
  TF_RETURN_IF_ERROR(take(b_.pre[1], r * n));
  TF_RETURN_IF_ERROR(take(b_.post, r * n));
  TF_RETURN_IF_ERROR(take(b_.comb, r * n * n));
  TF_RETURN_IF_ERROR(take(b_.mixes, r * (2 + n) * n));
  TF_RETURN_IF_ERROR(take(b_.x, r * h));
  TF_RETURN_IF_ERROR(take(b_.qr, r * c.q_lora_rank));
  TF_RETURN_IF_ERROR(take(b_.q, r * q_width));
  TF_RETURN_IF_ERROR(take(b_.kv, r * d));
  TF_RETURN_IF_ERROR(take(b_.attention, r * q_width));
  TF_RETURN_IF_ERROR(take(b_.groups, r * part_.wo_b_inputs.size()));
  TF_RETURN_IF_ERROR(take(b_.y, r * h));
  if (part_.experts_by_id) TF_RETURN_IF_ERROR(take(b_.y_shared, r * h));
  TF_RETURN_IF_ERROR(take(b_.a, r * d));
  TF_RETURN_IF_ERROR(take(b_.g, r * d));
  TF_RETURN_IF_ERROR(take(b_.iq, r * c.index_heads * c.index_head_dim));
  TF_RETURN_IF_ERROR(take(b_.iw, r * c.index_heads));
  TF_RETURN_IF_ERROR(take(b_.selected, r * c.index_topk));
  TF_RETURN_IF_ERROR(take(b_.selected_count, r));
  TF_RETURN_IF_ERROR(take(b_.candidates, r * c.candidate_blocks));
  TF_RETURN_IF_ERROR(take(b_.candidate_count, r));
  TF_RETURN_IF_ERROR(take(b_.staged, (r + int64_t{options_.slots} * c.window) * d));
  TF_RETURN_IF_ERROR(take(b_.route_scores, r * experts));
  TF_RETURN_IF_ERROR(take(b_.route_ids, r * topk));
  TF_RETURN_IF_ERROR(take(b_.route_weights, r * topk));
  TF_RETURN_IF_ERROR(take(b_.image, r));
  TF_RETURN_IF_ERROR(take(b_.rope, 3 * r * c.rope_dim));
  if (c.dspark.stages > 0) {
    TF_RETURN_IF_ERROR(take(b_.taps, r * tap_width()));
    TF_RETURN_IF_ERROR(take(b_.main_hidden, r * h));
  }
  if (engram_ != nullptr) {
    TF_RETURN_IF_ERROR(take(b_.engram, r * c.engram.columns() * c.engram.row_width));
    TF_RETURN_IF_ERROR(take(b_.engram_kv, r * (n + 1) * h));
    TF_RETURN_IF_ERROR(take(b_.engram_part, r * (n + 1) * h / collective_.world_size()));
  }
  workspace_bytes_ = workspace_bytes();
  return take(workspace_, workspace_bytes_);
}

Status ForwardModel::accept(SlotId slot, int64_t length) {
  SequenceState* state = cache_->find(slot);
  if (state == nullptr)
    return invalid_argument("accept: slot " + std::to_string(slot) + " is not open");
  const Status status = state->truncate(length, config_.window);
  return status.ok() ? status : status.with_context("accept, slot " + std::to_string(slot));
}

int64_t ForwardModel::length(SlotId slot) const {
  const SequenceState* state = cache_->find(slot);
  return state == nullptr ? 0 : state->length();
}

Status ForwardModel::read_entry(SlotId slot, int layer, int64_t entry, std::vector<float>& main,
                                std::vector<float>& index_key) const {
  const SequenceState* state = cache_->find(slot);
  const CacheLayout& layout = cache_->layout();
  const CacheSource* source = layout.source(layer);
  if (state == nullptr || source == nullptr)
    return invalid_argument("slot " + std::to_string(slot) + ", layer " + std::to_string(layer) +
                            ": no global entries");
  if (entry < 0 || entry >= state->length() / source->ratio)
    return invalid_argument("entry " + std::to_string(entry) + " of " +
                            std::to_string(state->length() / source->ratio));
  const BlockId block = state->blocks()[static_cast<size_t>(entry / source->entries_per_block)];
  const int64_t within = entry % source->entries_per_block;
  const uint8_t* base = cache_->pool().base() + block * cache_->pool().block_bytes();
  main.resize(static_cast<size_t>(layout.head_dim));
  index_key.resize(static_cast<size_t>(layout.index_dim));
  unpack_main_entry(base + source->main_offset + within * main_entry_bytes(layout.head_dim),
                    layout.head_dim, main.data());
  unpack_index_key(base + source->index_offset + within * index_key_bytes(layout.index_dim),
                   layout.index_dim, index_key.data());
  return ok_status();
}

}  // namespace tensorfold
