// Attention of one layer or drafter stage (engine/model/model_impl.h), in the order of
// docs/model.md 2.4.
#include <algorithm>

#include "engine/model/model_impl.h"

namespace tensorfold {
namespace {

ProjectOutput output(const WeightView& weight, void* y, ValueType type) {
  ProjectOutput o;
  o.weight = &weight;
  o.y = y;
  o.y_stride = weight.out;
  o.type = type;
  return o;
}

// What the layer reads after its attention.
void warm(const BlockWeights& weights, AttentionAppendParams& p) {
  const auto add = [&p](const WeightView& w) {
    const void* data = w.layout == WeightLayout::kExl3 ? w.exl3.trellis : w.data;
    if (data != nullptr && p.warms < kWarmMax) p.warm[p.warms++] = {data, w.bytes()};
  };
  add(weights.moe.hc.fn);
  add(weights.moe.gate);
  for (const WeightView& group : weights.attention.wo_a) add(group);
  add(weights.attention.wo_b);
}

}  // namespace

Status ForwardModel::attention(const LayerPlan& plan, const BlockWeights& weights, RowSet& rows) {
  const AttentionWeights& w = weights.attention;
  const bool indexes = !plan.drafter && plan.role->owns_index(plan.layer);
  ProjectParams p;
  p.rows = rows.rows;
  p.prompt_rows = rows.prompt_rows;
  p.in = config_.hidden;
  p.x = b_.x;
  p.x_stride = config_.hidden;
  p.output[p.outputs++] = output(w.wq_a, b_.qr, ValueType::kBf16);
  p.output[p.outputs++] = output(w.wkv, b_.kv, ValueType::kBf16);
  if (indexes)
    p.output[p.outputs++] = output(weights.indexer.weights_proj, b_.iw, ValueType::kBf16);
  p.workspace = workspace();
  backend_->project(p, *stream_);
  append_window(plan, weights, rows, plan.drafter);

  ProjectParams q;
  q.rows = rows.rows;
  q.prompt_rows = rows.prompt_rows;
  q.in = config_.q_lora_rank;
  q.x = b_.qr;
  q.x_stride = config_.q_lora_rank;
  q.output[q.outputs++] = output(w.wq_b, b_.q, ValueType::kBf16);
  if (indexes) q.output[q.outputs++] = output(weights.indexer.wq_b, b_.iq, ValueType::kBf16);
  q.workspace = workspace();
  backend_->project(q, *stream_);

  if (indexes) select_entries(plan, rows);
  attend(plan, w, rows);
  return project_output(w, rows);
}

EntryPool ForwardModel::entry_pool(int source_layer) {
  const CacheSource& source = *cache_->layout().source(source_layer);
  EntryPool pool;
  pool.base = cache_->pool().base();
  pool.block_bytes = cache_->pool().block_bytes();
  pool.main_offset = source.main_offset;
  pool.index_offset = source.index_offset;
  pool.entries_per_block = source.entries_per_block;
  pool.ratio = source.ratio;
  return pool;
}

const float* ForwardModel::rope_of(const LayerPlan& plan) const {
  return plan.drafter || plan.role->ratio == 0 ? rope_.plain : rope_.yarn;
}

AttentionAppendParams ForwardModel::append_params(const RowSet& rows) const {
  AttentionAppendParams p;
  p.rows = rows.rows;
  p.slices = static_cast<int>(rows.slices.size());
  p.slice = rows.on_device.slices;
  p.row_slice = rows.on_device.row_slice;
  p.head_dim = config_.head_dim;
  p.rope_dim = config_.rope_dim;
  p.norm_eps = static_cast<float>(config_.norm_eps);
  p.ring_rows = cache_->layout().ring_rows;
  p.workspace = workspace();
  return p;
}

// stage_only: drafted rows are keys of this pass and leave no trace. The query latents are normed,
// too.
void ForwardModel::append_window(const LayerPlan& plan, const BlockWeights& weights, RowSet& rows,
                                 bool stage_only) {
  const AttentionWeights& w = weights.attention;
  AttentionAppendParams p = append_params(rows);
  warm(weights, p);
  p.ring_offset = plan.ring * cache_->layout().ring_bytes;
  p.kv = b_.kv;
  p.kv_norm = w.kv_norm;
  p.rope = rope_of(plan);
  p.stage_only = stage_only;
  p.staged = b_.staged;
  p.qr = b_.qr;
  p.q_norm = w.q_norm;
  p.q_width = config_.q_lora_rank;
  backend_->attention_append(p, *stream_);
  if (!plan.drafter) probe_window(plan.layer, rows);
}

void ForwardModel::append_source(const LayerPlan& plan, const BlockWeights& weights, RowSet& rows) {
  const SourceWeights& w = weights.source;
  const bool pairs = plan.role->ratio == 2;
  ProjectParams q;
  q.rows = rows.rows;
  q.prompt_rows = rows.prompt_rows;
  q.in = config_.hidden;
  q.x = b_.x;
  q.x_stride = config_.hidden;
  q.output[q.outputs++] = output(w.wkv, b_.a, pairs ? ValueType::kF32 : ValueType::kBf16);
  if (pairs) q.output[q.outputs++] = output(w.wgate, b_.g, ValueType::kF32);
  q.workspace = workspace();
  backend_->project(q, *stream_);

  AttentionAppendParams p = append_params(rows);
  p.pair_offset = cache_->layout().source(plan.layer)->pair_offset;
  p.a = b_.a;
  p.g = b_.g;
  p.latent_norm = w.norm;
  p.index_wk = &w.index_wk;
  p.index_norm = w.index_norm;
  p.index_dim = config_.index_head_dim;
  p.entry_rope = pairs ? rope_.pair : rope_.yarn;
  p.pool = entry_pool(plan.layer);
  backend_->attention_append(p, *stream_);
}

void ForwardModel::select_entries(const LayerPlan& plan, RowSet& rows) {
  IndexSelectParams p;
  p.rows = rows.rows;
  p.slice = rows.on_device.slices;
  p.row_slice = rows.on_device.row_slice;
  p.heads = config_.index_heads;
  p.dim = config_.index_head_dim;
  p.rope_dim = config_.rope_dim;
  p.iq = b_.iq;
  p.iw = b_.iw;
  p.weight_scale = index_weight_scale_;
  p.rope = rope_of(plan);
  p.pool = entry_pool(plan.role->kv_source);
  p.topk = config_.index_topk;
  p.bf16_scores = options_.scores == ScorePrecision::kBf16;
  p.builds_candidates = plan.role->builds_candidates;
  p.uses_candidates = plan.role->uses_candidates;
  p.candidate_blocks = config_.candidate_blocks;
  p.candidate_block_size = config_.candidate_block_size;
  p.candidates = b_.candidates;
  p.candidate_count = b_.candidate_count;
  p.selected = b_.selected;
  p.selected_count = b_.selected_count;
  p.entries_max = visible_entries(rows.positions_end - 1, p.pool.ratio);
  if (probe_ != nullptr) {
    probe_stride_ = p.entries_max;
    probe_scores_ = allocate_array<float>(*device_, rows.rows * probe_stride_);
    p.scores = probe_scores_.get();
    p.scores_stride = probe_stride_;
  }
  p.workspace = workspace();
  backend_->index_select(p, *stream_);
  if (probe_ == nullptr) return;
  probe_scores(plan.layer, rows, p.pool.ratio);
  probe_i32(Quantity::kTopk, plan.layer, rows, b_.selected, p.topk, p.topk, b_.selected_count);
  if (p.builds_candidates) probe_candidates(plan.layer, rows, p.pool.ratio);
}

void ForwardModel::attend(const LayerPlan& plan, const AttentionWeights& w, RowSet& rows) {
  AttentionCoreParams p;
  p.rows = rows.rows;
  p.slice = rows.on_device.slices;
  p.row_slice = rows.on_device.row_slice;
  p.heads = static_cast<int>(part_.heads.size());
  p.head_dim = config_.head_dim;
  p.rope_dim = config_.rope_dim;
  p.window = config_.window;
  p.q = b_.q;
  p.rope = rope_of(plan);
  p.sink = w.sink;
  p.staged = b_.staged;
  p.whole_slice = plan.drafter;
  if (!plan.drafter && plan.role->kv_source >= 0) {
    p.selected = b_.selected;
    p.selected_count = b_.selected_count;
    p.topk = config_.index_topk;
    p.pool = entry_pool(plan.role->kv_source);
  }
  p.out = b_.attention;
  p.workspace = workspace();
  backend_->attention_core(p, *stream_);
}

Status ForwardModel::project_output(const AttentionWeights& w, RowSet& rows) {
  const int64_t heads = part_.heads.size();
  const auto groups = static_cast<int64_t>(w.wo_a.size());
  const int64_t group_width = heads / groups * config_.head_dim;
  const int64_t latent_width = groups * config_.o_lora_rank;
  for (int64_t first = 0; first < groups; first += kProjectOutputsMax) {
    ProjectParams p;
    p.rows = rows.rows;
    p.prompt_rows = rows.prompt_rows;
    p.in = static_cast<int>(group_width);
    p.x = b_.attention;
    p.x_stride = heads * config_.head_dim;
    for (int64_t g = first; g < std::min<int64_t>(groups, first + kProjectOutputsMax); ++g) {
      ProjectOutput& o = p.output[p.outputs++];
      o = output(w.wo_a[static_cast<size_t>(g)], b_.groups + g * config_.o_lora_rank,
                 ValueType::kBf16);
      o.y_stride = latent_width;
      o.x_offset = g * group_width;
    }
    p.workspace = workspace();
    backend_->project(p, *stream_);
  }
  ProjectParams p;
  p.rows = rows.rows;
  p.prompt_rows = rows.prompt_rows;
  p.in = static_cast<int>(latent_width);
  p.x = b_.groups;
  p.x_stride = latent_width;
  p.output[0] = output(w.wo_b, b_.y, ValueType::kF32);
  p.outputs = 1;
  p.workspace = workspace();
  backend_->project(p, *stream_);
  return reduce(b_.y, rows.rows);
}

}  // namespace tensorfold
