// The DSpark drafter (engine/model/model_impl.h; docs/model.md 4): context rows after every
// step, and drafts on request.
//
// Context rows are written for every decoder row of a step, accepted or not: the rings have
// kRingSpareRows more rows than are read, so rows of rejected positions lie past the length, are
// never read and are overwritten when those positions come again.
#include <algorithm>
#include <string>

#include "engine/model/model_impl.h"

namespace tensorfold {

// Rows of the step that become context rows of the drafter: those whose decoder ran.
void ForwardModel::build_context_rows() {
  RowSet& rows = draft_rows_;
  rows.clear();
  if (config_.dspark.stages == 0) return;
  const int own = static_cast<int>(rows_.decoder.slices.size()) - rows_.decoder.padding;
  for (size_t i = 0; i < rows_.decoder.slices.size(); ++i) {
    const AttentionSlice& s = rows_.decoder.slices[i];
    const int count = std::min(s.rows, config_.window);
    const int skipped = s.rows - count;
    SequenceState& state = *rows_.decoder.states[i];
    rows.add_slice(state, rows_.decoder.slots[i], s.first_position + skipped, count,
                   s.first_row + skipped, config_.window, s.first_position + skipped);
    if (static_cast<int>(i) < own)
      state.note_draft_rows(s.first_position + skipped, s.first_position + s.rows);
    if (s.first_row < rows_.decoder.prompt_rows) rows.prompt_rows = rows.rows;
  }
}

Status ForwardModel::write_draft_context() {
  if (config_.dspark.stages == 0) return ok_status();
  RowSet& rows = draft_rows_;
  device_->keep_rows(b_.taps, tap_width() * 2, rows.on_device.source_row, rows.rows, *stream_);
  make_rope_tables(rows, rope_, b_.rope);

  const DrafterWeights& d = weights_->drafter;
  ProjectParams p;
  p.rows = rows.rows;
  p.prompt_rows = rows.prompt_rows;
  p.in = d.main_proj.in;
  p.x = b_.taps;
  p.x_stride = tap_width();
  p.outputs = 1;
  p.output[0].weight = &d.main_proj;
  p.output[0].y = b_.main_hidden;
  p.output[0].y_stride = config_.hidden;
  p.workspace = workspace();
  backend_->project(p, *stream_);
  for (int stage = 0; stage < config_.dspark.stages; ++stage) {
    const AttentionWeights& w = d.stages[static_cast<size_t>(stage)].attention;
    ProjectParams k;
    k.rows = rows.rows;
    k.prompt_rows = rows.prompt_rows;
    k.in = config_.hidden;
    k.x = b_.main_hidden;
    k.x_stride = config_.hidden;
    k.norm_weight = d.main_norm;
    k.norm_eps = static_cast<float>(config_.norm_eps);
    k.outputs = 1;
    k.output[0].weight = &w.wkv;
    k.output[0].y = b_.kv;
    k.output[0].y_stride = config_.head_dim;
    k.workspace = workspace();
    backend_->project(k, *stream_);
    AttentionAppendParams a = append_params(rows);
    a.ring_offset = (config_.layers + stage) * cache_->layout().ring_bytes;
    a.kv = b_.kv;
    a.kv_norm = w.kv_norm;
    a.rope = rope_.plain;
    backend_->attention_append(a, *stream_);
  }
  return ok_status();
}

Status ForwardModel::check_draft(std::span<const DraftRequest> requests) const {
  std::vector<SlotId> seen;
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& r = requests[i];
    const std::string where = "draft request " + std::to_string(i) + ": ";
    const SequenceState* state = cache_->find(r.slot);
    if (state == nullptr)
      return invalid_argument(where + "slot " + std::to_string(r.slot) + " is not open");
    if (std::find(seen.begin(), seen.end(), r.slot) != seen.end())
      return invalid_argument(where + "slot " + std::to_string(r.slot) + " comes twice");
    seen.push_back(r.slot);
    if (r.position < 0 || r.position != state->length() - 1)
      return invalid_argument(where + "position " + std::to_string(r.position) +
                              " is not the last of " + std::to_string(state->length()));
    if (r.position < state->draft_low())
      return invalid_argument(where + "no decoder row ran for position " +
                              std::to_string(r.position));
    if (r.token < 0 || r.token >= config_.vocab_size)
      return invalid_argument(where + "token id " + std::to_string(r.token) +
                              " is not in the vocabulary");
    if (r.rows < 1 || r.rows > config_.dspark.block_size)
      return invalid_argument(where + "rows outside 1.." +
                              std::to_string(config_.dspark.block_size));
  }
  return ok_status();
}

void ForwardModel::build_draft_rows(std::span<const DraftRequest> requests) {
  const int block = config_.dspark.block_size;
  draft_rows_.clear();
  rows_.ids.clear();
  for (const DraftRequest& r : requests) {
    SequenceState& state = *cache_->find(r.slot);
    // One more window row than a layer sees: the context is positions p - window + 1 .. p.
    draft_rows_.add_slice(state, r.slot, r.position + 1, block, draft_rows_.rows,
                          config_.window + 1, state.draft_low());
    for (int i = 0; i < block; ++i)
      rows_.ids.push_back(i == 0 ? r.token : config_.dspark.noise_token_id);
  }
  tables_.begin();
  tables_.add_rows(draft_rows_);
  const int32_t* ids = tables_.add(rows_.ids);
  tables_.upload(*stream_);
  EmbedRowsParams p;
  p.rows = draft_rows_.rows;
  p.hidden = config_.hidden;
  p.hc = config_.hc_mult;
  p.ids = ids;
  p.table = &weights_->embed;
  p.streams = b_.streams;
  p.pre = b_.pre[0];
  backend_->embed_rows(p, *stream_);
  make_rope_tables(draft_rows_, rope_, b_.rope);
}

Status ForwardModel::draft(std::span<const DraftRequest> requests,
                           std::vector<DraftResult>& results, ForwardProbe* probe) {
  results.clear();
  probe_ = probe;
  if (requests.empty()) return ok_status();
  if (config_.dspark.stages == 0) {
    for (const DraftRequest& r : requests) results.push_back({r.slot, {}, {}});
    return ok_status();
  }
  TF_RETURN_IF_ERROR(check_draft(requests));
  return with_exchange([&] { return run_draft(requests, results); });
}

Status ForwardModel::run_draft(std::span<const DraftRequest> requests,
                               std::vector<DraftResult>& results) {
  build_draft_rows(requests);
  for (int stage = 0; stage < config_.dspark.stages; ++stage) {
    const BlockWeights& weights = weights_->drafter.stages[static_cast<size_t>(stage)];
    LayerPlan plan;
    plan.layer = stage;
    plan.ring = config_.layers + stage;
    plan.drafter = true;
    TF_RETURN_IF_ERROR(block_input(plan, weights, draft_rows_, nullptr));
    TF_RETURN_IF_ERROR(block_sublayers(plan, weights, draft_rows_, true));
  }
  const int64_t vocab = config_.vocab_size;
  const bool on_host = device_->host_memory() || probe_ != nullptr;  // the base logits too
  if (on_host) draft_base_.resize(static_cast<size_t>(draft_rows_.rows * vocab));
  HeadLogitsParams p;
  p.rows = draft_rows_.rows;
  p.hidden = config_.hidden;
  p.hc = config_.hc_mult;
  p.norm_eps = static_cast<float>(config_.norm_eps);
  p.streams = b_.streams;
  p.pre = b_.pre[0];
  p.norm_weight = weights_->drafter.norm;
  p.head = &weights_->head;
  p.collapsed = b_.x;
  p.workspace = workspace();
  TF_RETURN_IF_ERROR(vocab_logits(p, on_host ? draft_base_.data() : nullptr, d_.draft_base));
  probe_bf16(Quantity::kDraftHidden, 0, draft_rows_, b_.x, config_.hidden, config_.hidden);
  probe_rows(Quantity::kDraftBaseLogits, 0, draft_rows_, draft_base_.data(), vocab);
  return chooses_tokens() ? chain_on_device(requests, results) : markov_chain(requests, results);
}

// What the links of a chain have in common.
MarkovStepParams ForwardModel::link_params(int step, int requests) const {
  const DrafterWeights& d = weights_->drafter;
  MarkovStepParams p;
  p.rows = requests;
  p.rank = config_.dspark.markov_rank;
  p.hidden = config_.hidden;
  p.embed = &d.markov_embed;
  p.head = &d.markov_head;
  p.confidence = &d.confidence;
  p.x = b_.x + int64_t{step} * config_.hidden;
  p.x_stride = int64_t{config_.dspark.block_size} * config_.hidden;
  p.workspace = workspace();
  return p;
}

// A link in device memory: ids at `prev`, logits to d_.logits.
void ForwardModel::queue_link(int step, int requests, const int32_t* prev, float* confidence) {
  MarkovStepParams p = link_params(step, requests);
  p.prev = prev;
  p.base = d_.draft_base + step * vocab_part();
  p.base_stride = config_.dspark.block_size * vocab_part();
  p.logits = d_.logits;
  p.logits_stride = vocab_part();
  p.confidence_out = confidence;
  backend_->markov_step(p, *stream_);
}

// One link for all requests: logits [n, vocab] and confidence [n] in host memory.
Status ForwardModel::markov_link(int step, const std::vector<int32_t>& prev, float* logits,
                                 float* confidence) {
  const int block = config_.dspark.block_size;
  const auto n = static_cast<int>(prev.size());
  const int64_t vocab = config_.vocab_size, chunk = vocab_part();
  const bool split = collective_.world_size() > 1;
  if (device_->host_memory()) {
    MarkovStepParams p = link_params(step, n);
    gather_own_.resize(static_cast<size_t>(n * chunk));
    p.prev = prev.data();
    p.base = draft_base_.data() + step * vocab + part_.vocab.begin;
    p.base_stride = block * vocab;
    p.logits = split ? gather_own_.data() : logits;
    p.logits_stride = split ? chunk : vocab;
    p.confidence_out = confidence;
    backend_->markov_step(p, *stream_);
    return split ? gather_vocab(n, logits) : ok_status();
  }
  device_->upload(d_.draft_prev, prev.data(), int64_t{n} * 4, *stream_);
  queue_link(step, n, d_.draft_prev, d_.draft_confidence);
  TF_RETURN_IF_ERROR(device_->download(confidence, d_.draft_confidence, int64_t{n} * 4, *stream_));
  return fetch_vocab(n, d_.logits, logits);
}

// The whole chain where the logits are: ids and confidences leave the device at its end.
Status ForwardModel::chain_on_device(std::span<const DraftRequest> requests,
                                     std::vector<DraftResult>& results) {
  const auto n = static_cast<int>(requests.size());
  std::vector<int32_t> ids;
  std::vector<SampleRow> greedy(requests.size());
  int links = 0;
  for (SampleRow& row : greedy) row.greedy = 1;
  for (const DraftRequest& r : requests) {
    ids.push_back(r.token);
    links = std::max(links, r.rows);
  }
  device_->upload(d_.draft_prev, ids.data(), int64_t{n} * 4, *stream_);
  device_->upload(d_.sample_rows, greedy.data(), n * static_cast<int64_t>(sizeof(SampleRow)),
                  *stream_);
  int64_t at = 0;
  for (int step = 0; step < links; ++step, at += n) {
    queue_link(step, n, d_.draft_prev + at, d_.draft_confidence + at);
    TF_RETURN_IF_ERROR(gather_logits(n));
    sample_on_device(n, d_.sample_rows, d_.draft_prev + at + n, d_.sample_out);
  }
  const auto count = static_cast<size_t>(at);
  ids.resize(count);
  std::vector<float> confidence(count);
  const auto bytes = static_cast<int64_t>(count) * 4;
  TF_RETURN_IF_ERROR(device_->download(ids.data(), d_.draft_prev + n, bytes, *stream_));
  TF_RETURN_IF_ERROR(device_->download(confidence.data(), d_.draft_confidence, bytes, *stream_));
  for (size_t i = 0; i < requests.size(); ++i) {
    results.push_back({requests[i].slot, {}, {}});
    for (int step = 0; step < requests[i].rows; ++step) {
      const size_t link = static_cast<size_t>(step) * requests.size() + i;
      results[i].tokens.push_back(std::max(ids[link], 0));  // none where a logit was a NaN
      results[i].confidence.push_back(confidence[link]);
    }
  }
  return ok_status();
}

// Row i of every request at once: the head's correction by the previous token, then the greedy
// choice.
Status ForwardModel::markov_chain(std::span<const DraftRequest> requests,
                                  std::vector<DraftResult>& results) {
  const int block = config_.dspark.block_size;
  const auto n = static_cast<int>(requests.size());
  const int64_t vocab = config_.vocab_size;
  std::vector<int32_t> prev(static_cast<size_t>(n));
  std::vector<float> logits(static_cast<size_t>(n * vocab)), confidence(static_cast<size_t>(n));
  int wanted = 0;
  for (int i = 0; i < n; ++i) {
    const auto r = static_cast<size_t>(i);
    prev[r] = requests[r].token;
    wanted = std::max(wanted, requests[r].rows);
    results.push_back({requests[r].slot, {}, {}});
  }
  if (probe_ != nullptr) wanted = block;
  for (int step = 0; step < wanted; ++step) {
    TF_RETURN_IF_ERROR(markov_link(step, prev, logits.data(), confidence.data()));
    for (int i = 0; i < n; ++i) {
      const auto r = static_cast<size_t>(i);
      const float* row = logits.data() + i * vocab;
      const int32_t id = argmax_f32(row, vocab);
      prev[r] = id;
      if (step < requests[r].rows) {
        results[r].tokens.push_back(id);
        results[r].confidence.push_back(confidence[r]);
      }
      if (probe_ == nullptr) continue;
      const ProbeRow at = probe_row(draft_rows_, i * block + step);
      prev[r] = probe_->chain_token(at, id);
      probe_->on_f32(Quantity::kDraftLogits, 0, at, std::span(row, static_cast<size_t>(vocab)));
      probe_->on_i32(Quantity::kDraftId, 0, at, std::span(&id, 1));
      probe_->on_f32(Quantity::kDraftConfidence, 0, at, std::span(&confidence[r], 1));
    }
  }
  return ok_status();
}

}  // namespace tensorfold
