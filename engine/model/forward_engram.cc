// Engram's addition before a layer (engine/model/model_impl.h).
#include <string>

#include "engine/model/model_impl.h"

namespace tensorfold {

// The layer's raw rows of every row's hashes, on the device.
Status ForwardModel::fetch_engram(const LayerPlan& plan, const EngramWeights& w,
                                  const RowSet& rows) {
  const int index = plan.role->engram;
  const int64_t columns = config_.engram.columns();
  std::vector<int64_t> table_rows(static_cast<size_t>(rows.rows * columns));
  for (int r = 0; r < rows.rows; ++r) {
    const auto slice = static_cast<size_t>(rows.row_slice[static_cast<size_t>(r)]);
    engram_->hash(index, rows.states[slice]->engram_ids(), rows.positions[static_cast<size_t>(r)],
                  std::span(table_rows)
                      .subspan(static_cast<size_t>(r * columns), static_cast<size_t>(columns)));
  }
  const int64_t values = int64_t{rows.rows} * w.wkv.in;
  uint16_t* found = b_.engram;
  if (!device_->host_memory()) {
    engram_host_.resize(static_cast<size_t>(values));
    found = engram_host_.data();
  }
  const Status read = engram_->read(index, table_rows, collective_, found);
  if (!read.ok() && collective_.world_size() == 1)
    return {StatusCode::kUnavailable, read.message(), {}, std::string(kReasonStorage)};
  TF_RETURN_IF_ERROR(read);
  if (found != b_.engram) device_->upload(b_.engram, found, values * 2, *stream_);
  if (probe_ != nullptr) {
    const std::vector<int32_t> narrow(table_rows.begin(), table_rows.end());
    for (int r = 0; r < rows.rows; ++r)
      probe_->on_i32(Quantity::kEngramRows, plan.layer, probe_row(rows, r),
                     std::span(narrow).subspan(static_cast<size_t>(r * columns),
                                               static_cast<size_t>(columns)));
  }
  return ok_status();
}

Status ForwardModel::add_engram(const LayerPlan& plan, const EngramWeights& w, RowSet& rows) {
  if (!engram_fetched_) TF_RETURN_IF_ERROR(fetch_engram(plan, w, rows));
  const int64_t width = int64_t{config_.hc_mult + 1} * config_.hidden;
  ProjectParams p;
  p.rows = rows.rows;
  p.prompt_rows = rows.prompt_rows;
  p.in = w.wkv.in;
  p.x = b_.engram;
  p.x_stride = w.wkv.in;
  p.outputs = 1;
  p.output[0].weight = &w.wkv;
  p.output[0].y = w.split ? b_.engram_part : b_.engram_kv;
  p.output[0].y_stride = w.wkv.out;
  p.workspace = workspace();
  backend_->project(p, *stream_);
  if (w.split)
    TF_RETURN_IF_ERROR(gather_columns(b_.engram_part, rows.rows, w.wkv.out, b_.engram_kv));

  EngramGateParams g;
  g.rows = rows.rows;
  g.hidden = config_.hidden;
  g.hc = config_.hc_mult;
  g.eps = static_cast<float>(config_.norm_eps);
  g.kv = b_.engram_kv;
  g.q_weight = w.q_weight;
  g.k_weight = w.k_weight;
  g.dead = rows.on_device.image;
  g.streams = b_.streams;
  g.gates = probe_ != nullptr ? b_.mixes : nullptr;  // free until the coefficients are made
  backend_->engram_gate(g, *stream_);
  probe_f32(Quantity::kEngramGate, plan.layer, rows, b_.mixes, config_.hc_mult);
  TF_CHECK_EQ(width, int64_t{w.wkv.out} * (w.split ? collective_.world_size() : 1));
  return ok_status();
}

}  // namespace tensorfold
