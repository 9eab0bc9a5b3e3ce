// Loading a model, its buffers, and what needs no layer loop (engine/model/model_impl.h).
#include "engine/model/model_impl.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/base/log_sink.h"
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
  TF_ASSIGN_OR_RETURN(device_, open_device(options_.device));
  TF_RETURN_IF_ERROR(device_->check_shape(workspace_shape()));
  backend_ = &device_->backend();
  if (device_->records_graphs() && options_.graph_bytes > 0)
    graphs_ = std::make_unique<GraphTable>(options_.graph_bytes);
  TF_ASSIGN_OR_RETURN(stream_, device_->make_stream(options_.threads));
  TF_ASSIGN_OR_RETURN(weights_, load_model_weights(source, *device_, *stream_));
  tell_weights();
  const std::span<const int32_t> map = source.engram_token_map();
  token_map_.assign(map.begin(), map.end());
  if (!config_.engram.layers.empty()) {
    TF_ASSIGN_OR_RETURN(engram_, EngramRows::open(source));
  }
  TF_ASSIGN_OR_RETURN(const CacheLayout layout,
                      make_cache_layout(config_, options_.slots, options_.context,
                                        options_.pool_blocks, options_.snapshot_bytes));
  TF_ASSIGN_OR_RETURN(SequenceCache cache, SequenceCache::create(layout, *device_, stream_.get()));
  cache_ = std::make_unique<SequenceCache>(std::move(cache));
  cache_->set_tier(options_.tier);
  RopeYarn yarn;
  yarn.factor = config_.yarn.factor;
  yarn.beta_fast = config_.yarn.beta_fast;
  yarn.beta_slow = config_.yarn.beta_slow;
  yarn.original_positions = config_.yarn.original_positions;
  TF_ASSIGN_OR_RETURN(freqs_plain_,
                      keep(rope_frequencies(config_.rope_theta, config_.rope_dim, nullptr)));
  TF_ASSIGN_OR_RETURN(freqs_yarn_,
                      keep(rope_frequencies(config_.compress_rope_theta, config_.rope_dim, &yarn)));
  index_weight_scale_ = static_cast<float>(
      1.0 / std::sqrt(static_cast<double>(config_.index_head_dim) * config_.index_heads));
  TF_RETURN_IF_ERROR(allocate_buffers());
  tell_memory();
  return ok_status();
}

// One line where EXL3 weights are read as they are.
void ForwardModel::tell_weights() const {
  if (options_.log == nullptr || weights_->exl3_kept == 0) return;
  std::string line = "EXL3 weights: " + std::to_string(weights_->exl3_kept) +
                     " matrices are read as stored, " + std::to_string(weights_->exl3_widened) +
                     " widened to bf16";
  if (weights_->exl3_widened > 0) line += " (the first: " + weights_->exl3_widened_0 + ")";
  options_.log->info(line);
}

// What was taken, by what it is for: from here on a step takes nothing more.
void ForwardModel::tell_memory() const {
  if (options_.log == nullptr) return;
  const auto mib = [](int64_t bytes) {
    const int64_t tenths = (bytes * 10 + (int64_t{1} << 19)) >> 20;
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " MiB";
  };
  options_.log->info("memory taken: weights " + mib(weights_->bytes) + ", cache " +
                     mib(cache_->bytes()) + ", activations " +
                     mib(taken_bytes_ - workspace_bytes_ - exchange_bytes_) + ", workspace " +
                     mib(workspace_bytes_) + ", exchanges " + mib(exchange_bytes_));
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
      {"q_lora_rank", c.q_lora_rank, 32, kQueryWidthMax},
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

WorkspaceShape ForwardModel::workspace_shape() const {
  const ModelConfig& c = config_;
  WorkspaceShape s;
  s.rows = options_.rows_max;
  s.widest_input = static_cast<int>(std::max<int64_t>(
      {c.hidden, tap_width(), int64_t{c.engram.columns()} * c.engram.row_width, c.q_lora_rank,
       int64_t{c.heads / c.o_groups} * c.head_dim, int64_t{c.o_groups} * c.o_lora_rank}));
  s.hidden = c.hidden;
  s.hc = c.hc_mult;
  s.heads = static_cast<int>(part_.heads.size());
  s.head_dim = c.head_dim;
  s.index_heads = c.index_heads;
  s.index_dim = c.index_head_dim;
  s.entries = options_.context > 0 ? options_.context : c.max_positions;
  s.candidate_block_size = c.candidate_block_size;
  s.intermediate = static_cast<int>(part_.intermediate.size());
  s.experts = std::max(c.routed_experts, c.dspark.routed_experts);
  s.topk = std::max(c.experts_per_token, c.dspark.experts_per_token);
  s.markov_rank = c.dspark.markov_rank;
  s.exl3 = weights_ != nullptr && weights_->exl3_kept > 0;
  return s;
}

template <typename T>
Status ForwardModel::take(T*& pointer, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
  memory_.push_back(allocate_array<std::byte>(*device_, bytes));
  if (memory_.back() == nullptr)
    return unavailable("no memory for " + std::to_string(bytes) + " bytes of activations");
  taken_bytes_ += bytes;
  pointer = reinterpret_cast<T*>(memory_.back().get());
  return ok_status();
}

// A constant table in device memory.
Result<const float*> ForwardModel::keep(const std::vector<float>& values) {
  float* at = nullptr;
  TF_RETURN_IF_ERROR(take(at, static_cast<int64_t>(values.size())));
  device_->upload(at, values.data(), static_cast<int64_t>(values.size()) * 4, *stream_);
  return static_cast<const float*>(at);
}

Status ForwardModel::allocate_logits() {
  if (device_->host_memory()) return ok_status();
  const int64_t part = vocab_part(), slots = options_.slots;
  TF_RETURN_IF_ERROR(take(d_.logits, std::max<int64_t>(kLogitsRowsAtOnce, slots) * part));
  if (device_->samples_rows()) {
    TF_RETURN_IF_ERROR(take(d_.sample_rows, options_.rows_max));
    TF_RETURN_IF_ERROR(take(d_.sample_out, int64_t{2} * options_.rows_max));
  }
  if (config_.dspark.stages == 0) return ok_status();
  const int64_t block = config_.dspark.block_size;
  TF_RETURN_IF_ERROR(take(d_.draft_base, slots * block * part));
  TF_RETURN_IF_ERROR(take(d_.draft_prev, slots * (block + 1)));
  return take(d_.draft_confidence, slots * block);
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
  TF_RETURN_IF_ERROR(allocate_logits());
  TF_RETURN_IF_ERROR(allocate_exchange());
  // Encoder, decoder and context rows of a step.
  TF_RETURN_IF_ERROR(tables_.create(*device_, cache_->layout(), options_.rows_max, 3));
  workspace_bytes_ = device_->workspace_bytes(workspace_shape(), *stream_);
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

std::span<const int32_t> ForwardModel::ids(SlotId slot) const {
  const SequenceState* state = cache_->find(slot);
  return state == nullptr ? std::span<const int32_t>() : state->ids();
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
  const int64_t main_bytes = main_entry_bytes(layout.head_dim);
  const int64_t key_bytes = index_key_bytes(layout.index_dim);
  std::vector<uint8_t> packed(static_cast<size_t>(main_bytes + key_bytes));
  TF_RETURN_IF_ERROR(device_->download(
      packed.data(), base + source->main_offset + within * main_bytes, main_bytes, *stream_));
  TF_RETURN_IF_ERROR(device_->download(packed.data() + main_bytes,
                                       base + source->index_offset + within * key_bytes, key_bytes,
                                       *stream_));
  main.resize(static_cast<size_t>(layout.head_dim));
  index_key.resize(static_cast<size_t>(layout.index_dim));
  unpack_main_entry(packed.data(), layout.head_dim, main.data());
  unpack_index_key(packed.data() + main_bytes, layout.index_dim, index_key.data());
  return ok_status();
}

}  // namespace tensorfold
