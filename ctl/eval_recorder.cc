// See eval_recorder.h.
#include "ctl/eval_recorder.h"

#include "engine/model/config.h"

namespace tensorfold::ctl {

void EvalRecorder::on_f32(Quantity q, int layer, ProbeRow row, std::span<const float> values) {
  if (row.position < keep_from_) return;
  f32_[key(q, layer, row.position)].assign(values.begin(), values.end());
}

void EvalRecorder::on_i32(Quantity q, int layer, ProbeRow row, std::span<const int32_t> values) {
  if (row.position < keep_from_ && q != Quantity::kEngramRows) return;
  i32_[key(q, layer, row.position)].assign(values.begin(), values.end());
}

const std::vector<float>* EvalRecorder::f32(Quantity q, int layer, int64_t position) const {
  const auto it = f32_.find(key(q, layer, position));
  return it == f32_.end() ? nullptr : &it->second;
}

const std::vector<float>* EvalRecorder::f32_any(Quantity q, int64_t position) const {
  for (int layer = 0; layer < kLayersMax; ++layer) {
    if (const std::vector<float>* found = f32(q, layer, position)) return found;
  }
  return nullptr;
}

const std::vector<int32_t>* EvalRecorder::i32(Quantity q, int layer, int64_t position) const {
  const auto it = i32_.find(key(q, layer, position));
  return it == i32_.end() ? nullptr : &it->second;
}

}  // namespace tensorfold::ctl
