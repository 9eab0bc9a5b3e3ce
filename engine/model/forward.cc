// The step: cache commands, rows, the layer loop (engine/model/model_impl.h).

#include "engine/model/model_impl.h"

namespace tensorfold {

Status ForwardModel::apply(const StepPlan& plan) {
  for (const CacheCommand& command : plan.commands)
    TF_RETURN_IF_ERROR(cache_->apply(command, plan.notes));
  commands_done_ = true;
  return ok_status();
}

Status ForwardModel::forward(const StepPlan& plan,
                             std::span<const std::vector<int32_t>> device_tokens,
                             StepLogits& logits, ForwardProbe* probe) {
  logits.clear();
  probe_ = probe;
  return with_exchange([&] { return step(plan, device_tokens, logits); });
}

Status ForwardModel::step(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                          StepLogits& logits) {
  if (!commands_done_) TF_RETURN_IF_ERROR(apply(plan));
  commands_done_ = false;
  TF_RETURN_IF_ERROR(
      rows_.build(plan, device_tokens, config_, token_map_, options_.rows_max, *cache_));
  if (rows_.encoder.rows == 0) return ok_status();
  choose_graph();
  build_context_rows();
  tables_.begin(step_key_.has_value());
  tables_.add_rows(rows_.encoder);
  tables_.add_rows(rows_.decoder);
  tables_.add_rows(draft_rows_);
  ids_on_device_ = tables_.add(rows_.ids);
  logits_rows_on_device_ = tables_.add(rows_.logits_rows);
  tables_.upload(*stream_);
  if (step_key_) {
    TF_RETURN_IF_ERROR(run_segments());
  } else {
    begin_rows();
    TF_RETURN_IF_ERROR(run_layers(0, config_.layers));
  }
  for (const StepSlice& s : rows_.slices) s.state->note_ring_writes();
  if (rows_.decoder.rows == 0) return ok_status();
  TF_RETURN_IF_ERROR(head(logits));
  TF_RETURN_IF_ERROR(run_part([this] { return write_draft_context(); }));
  keep_graph();
  return ok_status();
}

// The rows' embeddings and rotary tables.
void ForwardModel::begin_rows() {
  EmbedRowsParams p;
  p.rows = rows_.encoder.rows;
  p.hidden = config_.hidden;
  p.hc = config_.hc_mult;
  p.ids = ids_on_device_;
  p.table = &weights_->embed;
  p.streams = b_.streams;
  p.pre = b_.pre[0];
  backend_->embed_rows(p, *stream_);
  make_rope_tables(rows_.encoder, rope_, b_.rope);
}

Status ForwardModel::run_layers(int first, int last) {
  RowSet* rows = first <= config_.decoder_start ? &rows_.encoder : &rows_.decoder;
  const float* unmixed = nullptr;  // the last layer's output, where the next one's input mixes it
  for (int layer = first; layer < last; ++layer) {
    const BlockWeights& weights = weights_->layers[static_cast<size_t>(layer)];
    LayerPlan plan;
    plan.layer = plan.ring = layer;
    plan.role = &config_.roles[static_cast<size_t>(layer)];
    TF_RETURN_IF_ERROR(block_input(plan, weights, *rows, unmixed));
    if (layer == config_.decoder_start) {
      // Global entries exist for every row; the rest only for rows that need an output.
      enter_decoder();
      rows = &rows_.decoder;
      if (rows->rows == 0) return ok_status();
    }
    const bool mixes = mixes_at_once(layer, last);
    TF_RETURN_IF_ERROR(block_sublayers(plan, weights, *rows, mixes));
    unmixed = mixes ? nullptr : b_.y;
  }
  return ok_status();
}

// Whether a layer's output goes into the streams before anything else: where somebody looks at
// them or adds to them. Elsewhere one call does this mixing and the next layer's first step.
bool ForwardModel::mixes_at_once(int layer, int last) const {
  if (probe_ != nullptr || layer + 1 == last) return true;
  return config_.roles[static_cast<size_t>(layer) + 1].engram >= 0;
}

// Up to the normed attention input, and the global entries of a KV source. y: to be mixed in first.
Status ForwardModel::block_input(const LayerPlan& plan, const BlockWeights& weights, RowSet& rows,
                                 const float* y) {
  uint16_t* tap = nullptr;
  if (!plan.drafter) {
    if (probe_ != nullptr) probe_input(plan, rows);
    if (plan.role->engram >= 0) TF_RETURN_IF_ERROR(add_engram(plan, weights.engram, rows));
    if (plan.role->tap >= 0) tap = b_.taps + int64_t{plan.role->tap} * config_.hidden;
  }
  hc_step(weights.attention.hc, weights.attention.norm, rows, tap, y, b_.pre[0], b_.pre[1]);
  if (tap != nullptr)
    probe_bf16(Quantity::kTap, plan.layer, rows, tap, config_.hidden, tap_width());
  if (!plan.drafter && plan.role->owns_kv(plan.layer)) append_source(plan, weights, rows);
  return ok_status();
}

Status ForwardModel::block_sublayers(const LayerPlan& plan, const BlockWeights& weights,
                                     RowSet& rows, bool mixes) {
  TF_RETURN_IF_ERROR(attention(plan, weights, rows));
  if (!plan.drafter) probe_rounded(Quantity::kAttnOut, plan.layer, rows, b_.y, config_.hidden);
  hc_step(weights.moe.hc, weights.moe.norm, rows, nullptr, b_.y, b_.pre[1], b_.pre[0]);
  TF_RETURN_IF_ERROR(moe(plan, weights.moe, rows));
  if (mixes) mix(rows);
  const int64_t width = int64_t{config_.hc_mult} * config_.hidden;
  if (plan.drafter) {
    probe_bf16(Quantity::kDraftStreams, plan.layer, rows, b_.streams, width, width);
    return ok_status();
  }
  probe_rounded(Quantity::kFfnOut, plan.layer, rows, b_.y, config_.hidden);
  probe_bf16(Quantity::kStreams, plan.layer, rows, b_.streams, width, width);
  probe_f32(Quantity::kPre, plan.layer, rows, b_.pre[0], config_.hc_mult);
  return ok_status();
}

// Mixes y (if given) with the coefficients at hand, makes those of the next sublayer, collapses
// with pre_in and norms into x.
void ForwardModel::hc_step(const HcWeights& hc, const float* norm, const RowSet& rows,
                           uint16_t* tap, const float* y, const float* pre_in, float* pre_out) {
  HcStepParams p = hc_params(rows);
  p.y = y;
  p.tap = tap;
  p.tap_stride = tap_width();
  p.fn = &hc.fn;
  p.scale = hc.scale;
  p.base = hc.base;
  p.mixes = b_.mixes;
  p.pre_out = pre_out;
  p.post_out = b_.post;
  p.comb_out = b_.comb;
  p.pre_in = pre_in;
  p.norm_weight = norm;
  p.normed = b_.x;
  backend_->hc_step(p, *stream_);
}

void ForwardModel::mix(const RowSet& rows) {
  HcStepParams p = hc_params(rows);
  p.y = b_.y;
  backend_->hc_step(p, *stream_);
}

HcStepParams ForwardModel::hc_params(const RowSet& rows) const {
  HcStepParams p;
  p.rows = rows.rows;
  p.prompt_rows = rows.prompt_rows;
  p.hidden = config_.hidden;
  p.hc = config_.hc_mult;
  p.sinkhorn_iters = config_.hc_sinkhorn_iters;
  p.norm_eps = static_cast<float>(config_.norm_eps);
  p.hc_eps = static_cast<float>(config_.hc_eps);
  p.streams = b_.streams;
  p.post_in = b_.post;
  p.comb_in = b_.comb;
  p.workspace = workspace();
  return p;
}

void ForwardModel::make_rope_tables(const RowSet& rows, RopeRows& tables, float* memory) {
  const int64_t table = int64_t{options_.rows_max} * config_.rope_dim;
  RopeTableParams p;
  p.rows = rows.rows;
  p.pairs = config_.rope_dim / 2;
  p.positions = rows.on_device.positions;
  p.freqs = freqs_plain_;
  p.table = memory;
  backend_->rope_table(p, *stream_);
  p.freqs = freqs_yarn_;
  p.table = memory + table;
  backend_->rope_table(p, *stream_);
  p.positions = rows.on_device.pair_positions;
  p.table = memory + 2 * table;
  backend_->rope_table(p, *stream_);
  tables = {memory, memory + table, memory + 2 * table};
}

// Keeps the decoder's rows of everything that lives from row to row, in place.
void ForwardModel::enter_decoder() {
  if (rows_.decoder.rows == rows_.encoder.rows) return;
  const int64_t n = config_.hc_mult, h = config_.hidden, rope = config_.rope_dim;
  const int64_t table = int64_t{options_.rows_max} * rope;
  gather_rows(b_.streams, n * h * 2);
  gather_rows(b_.pre[0], n * 4);
  gather_rows(b_.pre[1], n * 4);
  gather_rows(b_.post, n * 4);
  gather_rows(b_.comb, n * n * 4);
  gather_rows(b_.x, h * 2);
  if (b_.taps != nullptr) gather_rows(b_.taps, tap_width() * 2);
  for (int i = 0; i < 3; ++i) gather_rows(b_.rope + i * table, rope * 4);
}

void ForwardModel::gather_rows(void* data, int64_t row_bytes) {
  device_->keep_rows(data, row_bytes, rows_.decoder.on_device.source_row, rows_.decoder.rows,
                     *stream_);
}

}  // namespace tensorfold
