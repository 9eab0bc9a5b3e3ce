// Rows handed to the probe (engine/model/probe.h). Nothing here runs when there is none.
#include <algorithm>

#include "engine/model/model_impl.h"
#include "kernels/formats.h"

namespace tensorfold {

ProbeRow ForwardModel::probe_row(const RowSet& rows, int row) const {
  const auto r = static_cast<size_t>(row);
  return {rows.slots[static_cast<size_t>(rows.row_slice[r])], rows.positions[r]};
}

void ForwardModel::probe_input(const LayerPlan& plan, const RowSet& rows) {
  const auto width = static_cast<size_t>(config_.hc_mult * config_.hidden);
  const auto n = static_cast<size_t>(config_.hc_mult);
  for (int r = 0; r < rows.rows; ++r)
    probe_->layer_input(plan.layer, probe_row(rows, r),
                        std::span(b_.streams + static_cast<size_t>(r) * width, width),
                        std::span(b_.pre[0] + static_cast<size_t>(r) * n, n));
}

void ForwardModel::probe_f32(Quantity q, int layer, const RowSet& rows, const float* values,
                             int64_t width) {
  if (probe_ == nullptr) return;
  for (int r = 0; r < rows.rows; ++r)
    probe_->on_f32(q, layer, probe_row(rows, r),
                   std::span(values + r * width, static_cast<size_t>(width)));
}

void ForwardModel::probe_rounded(Quantity q, int layer, const RowSet& rows, const float* values,
                                 int64_t width) {
  if (probe_ == nullptr) return;
  std::vector<float> row(static_cast<size_t>(width));
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
  for (int r = 0; r < rows.rows; ++r) {
    for (int64_t i = 0; i < width; ++i)
      row[static_cast<size_t>(i)] = bf16_to_f32(values[r * stride + i]);
    probe_->on_f32(q, layer, probe_row(rows, r), row);
  }
}

void ForwardModel::probe_i32(Quantity q, int layer, const RowSet& rows, const int32_t* values,
                             int64_t width, int64_t stride, const int32_t* counts) {
  if (probe_ == nullptr) return;
  for (int r = 0; r < rows.rows; ++r) {
    const auto count = static_cast<size_t>(counts != nullptr ? counts[r] : width);
    probe_->on_i32(q, layer, probe_row(rows, r), std::span(values + r * stride, count));
  }
}

void ForwardModel::probe_scores(int layer, const RowSet& rows, int ratio) {
  for (int r = 0; r < rows.rows; ++r) {
    const int64_t visible = visible_entries(rows.positions[static_cast<size_t>(r)], ratio);
    probe_->on_f32(
        Quantity::kIndexScores, layer, probe_row(rows, r),
        std::span(probe_scores_.data() + r * probe_stride_, static_cast<size_t>(visible)));
  }
}

void ForwardModel::probe_candidates(int layer, const RowSet& rows, int ratio) {
  const int64_t size = config_.candidate_block_size;
  for (int r = 0; r < rows.rows; ++r) {
    const int64_t visible = visible_entries(rows.positions[static_cast<size_t>(r)], ratio);
    std::vector<int32_t> mask(static_cast<size_t>(visible), 0);
    const int32_t* blocks = b_.candidates + int64_t{r} * config_.candidate_blocks;
    for (int b = 0; b < b_.candidate_count[r]; ++b)
      for (int64_t j = blocks[b] * size; j < std::min((blocks[b] + 1) * size, visible); ++j)
        mask[static_cast<size_t>(j)] = 1;
    probe_->on_i32(Quantity::kCandidates, layer, probe_row(rows, r), mask);
  }
}

void ForwardModel::probe_window(int layer, const RowSet& rows) {
  if (probe_ == nullptr) return;
  std::vector<float> row(static_cast<size_t>(config_.head_dim));
  for (int r = 0; r < rows.rows; ++r) {
    const AttentionSlice& s =
        rows.slices[static_cast<size_t>(rows.row_slice[static_cast<size_t>(r)])];
    const int64_t staged = s.staged_first + s.history + (r - s.first_row);
    const uint16_t* from = b_.staged + staged * config_.head_dim;
    for (size_t i = 0; i < row.size(); ++i) row[i] = bf16_to_f32(from[i]);
    probe_->on_f32(Quantity::kWindowLatent, layer, probe_row(rows, r), row);
  }
}

}  // namespace tensorfold
