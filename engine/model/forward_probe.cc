// Rows handed to the probe (engine/model/probe.h). Nothing here runs when there is none.
#include <algorithm>

#include "engine/model/model_impl.h"
#include "kernels/formats.h"

namespace tensorfold {

ProbeRow ForwardModel::probe_row(const RowSet& rows, int row) const {
  const auto r = static_cast<size_t>(row);
  return {rows.slots[static_cast<size_t>(rows.row_slice[r])], rows.positions[r]};
}

// `count` values as the host can read them. A failed copy shows at the step's end.
template <typename T>
const T* ForwardModel::on_host(const T* values, int64_t count, std::vector<T>& copy) {
  if (device_->host_memory()) return values;
  copy.assign(static_cast<size_t>(count), T{});
  (void)device_->download(copy.data(), values, count * static_cast<int64_t>(sizeof(T)), *stream_);
  return copy.data();
}

void ForwardModel::probe_input(const LayerPlan& plan, const RowSet& rows) {
  const auto width = static_cast<size_t>(config_.hc_mult * config_.hidden);
  const auto n = static_cast<size_t>(config_.hc_mult);
  const auto count = static_cast<size_t>(rows.rows);
  std::vector<uint16_t> streams_copy;
  std::vector<float> pre_copy;
  const auto bytes = [](size_t values, size_t each) { return static_cast<int64_t>(values * each); };
  auto* streams =
      const_cast<uint16_t*>(on_host(b_.streams, static_cast<int64_t>(count * width), streams_copy));
  auto* pre = const_cast<float*>(on_host(b_.pre[0], static_cast<int64_t>(count * n), pre_copy));
  for (size_t r = 0; r < count; ++r)
    probe_->layer_input(plan.layer, probe_row(rows, static_cast<int>(r)),
                        std::span(streams + r * width, width), std::span(pre + r * n, n));
  if (device_->host_memory()) return;
  device_->upload(b_.streams, streams, bytes(count * width, 2), *stream_);
  device_->upload(b_.pre[0], pre, bytes(count * n, 4), *stream_);
}

// Values that are in host memory already.
void ForwardModel::probe_rows(Quantity q, int layer, const RowSet& rows, const float* values,
                              int64_t width) {
  if (probe_ == nullptr) return;
  for (int r = 0; r < rows.rows; ++r)
    probe_->on_f32(q, layer, probe_row(rows, r),
                   std::span(values + r * width, static_cast<size_t>(width)));
}

void ForwardModel::probe_f32(Quantity q, int layer, const RowSet& rows, const float* values,
                             int64_t width) {
  if (probe_ == nullptr) return;
  std::vector<float> copy;
  probe_rows(q, layer, rows, on_host(values, rows.rows * width, copy), width);
}

void ForwardModel::probe_rounded(Quantity q, int layer, const RowSet& rows, const float* values,
                                 int64_t width) {
  if (probe_ == nullptr) return;
  std::vector<float> row(static_cast<size_t>(width)), copy;
  values = on_host(values, rows.rows * width, copy);
  for (int r = 0; r < rows.rows; ++r) {
    for (int64_t i = 0; i < width; ++i)
      row[static_cast<size_t>(i)] = round_bf16(values[r * width + i]);
    probe_->on_f32(q, layer, probe_row(rows, r), row);
  }
}

void ForwardModel::probe_bf16(Quantity q, int layer, const RowSet& rows, const uint16_t* values,
                              int64_t width, int64_t stride) {
  if (probe_ == nullptr) return;
  std::vector<float> row(static_cast<size_t>(width));
  std::vector<uint16_t> copy;
  values = on_host(values, (rows.rows - 1) * stride + width, copy);
  for (int r = 0; r < rows.rows; ++r) {
    for (int64_t i = 0; i < width; ++i)
      row[static_cast<size_t>(i)] = bf16_to_f32(values[r * stride + i]);
    probe_->on_f32(q, layer, probe_row(rows, r), row);
  }
}

void ForwardModel::probe_i32(Quantity q, int layer, const RowSet& rows, const int32_t* values,
                             int64_t width, int64_t stride, const int32_t* counts) {
  if (probe_ == nullptr) return;
  std::vector<int32_t> copy, counts_copy;
  values = on_host(values, (rows.rows - 1) * stride + width, copy);
  if (counts != nullptr) counts = on_host(counts, rows.rows, counts_copy);
  for (int r = 0; r < rows.rows; ++r) {
    const auto count = static_cast<size_t>(counts != nullptr ? counts[r] : width);
    probe_->on_i32(q, layer, probe_row(rows, r), std::span(values + r * stride, count));
  }
}

void ForwardModel::probe_scores(int layer, const RowSet& rows, int ratio) {
  std::vector<float> copy;
  const float* scores = on_host(probe_scores_.get(), rows.rows * probe_stride_, copy);
  for (int r = 0; r < rows.rows; ++r) {
    const int64_t visible = visible_entries(rows.positions[static_cast<size_t>(r)], ratio);
    probe_->on_f32(Quantity::kIndexScores, layer, probe_row(rows, r),
                   std::span(scores + r * probe_stride_, static_cast<size_t>(visible)));
  }
}

void ForwardModel::probe_candidates(int layer, const RowSet& rows, int ratio) {
  const int64_t size = config_.candidate_block_size, stride = config_.candidate_blocks;
  std::vector<int32_t> copy, counts_copy;
  const int32_t* candidates = on_host(b_.candidates, rows.rows * stride, copy);
  const int32_t* counts = on_host(b_.candidate_count, rows.rows, counts_copy);
  for (int r = 0; r < rows.rows; ++r) {
    const int64_t visible = visible_entries(rows.positions[static_cast<size_t>(r)], ratio);
    std::vector<int32_t> mask(static_cast<size_t>(visible), 0);
    const int32_t* blocks = candidates + r * stride;
    for (int b = 0; b < counts[r]; ++b)
      for (int64_t j = blocks[b] * size; j < std::min((blocks[b] + 1) * size, visible); ++j)
        mask[static_cast<size_t>(j)] = 1;
    probe_->on_i32(Quantity::kCandidates, layer, probe_row(rows, r), mask);
  }
}

void ForwardModel::probe_window(int layer, const RowSet& rows) {
  if (probe_ == nullptr) return;
  std::vector<float> row(static_cast<size_t>(config_.head_dim));
  std::vector<uint16_t> copy;
  const uint16_t* window = on_host(b_.staged, int64_t{rows.staged_rows} * config_.head_dim, copy);
  for (int r = 0; r < rows.rows; ++r) {
    const AttentionSlice& s =
        rows.slices[static_cast<size_t>(rows.row_slice[static_cast<size_t>(r)])];
    const int64_t staged = s.staged_first + s.history + (r - s.first_row);
    const uint16_t* from = window + staged * config_.head_dim;
    for (size_t i = 0; i < row.size(); ++i) row[i] = bf16_to_f32(from[i]);
    probe_->on_f32(Quantity::kWindowLatent, layer, probe_row(rows, r), row);
  }
}

}  // namespace tensorfold
