// One link of the drafter's Markov chain (kernels/markov_step.h).
#include "kernels/markov_step.h"

#include <algorithm>

#include "engine/base/check.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/row_ops.h"

namespace tensorfold {

int64_t markov_step_workspace_bytes(int rows, int rank, int hidden) {
  return cpu::Arena::padded(int64_t{rows} * rank * 8) +
         cpu::Arena::padded(int64_t{rows} * (hidden + rank) * 8);
}

int32_t argmax_f32(const float* values, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i)
    if (values[i] > values[best] || (values[best] != values[best] && values[i] == values[i]))
      best = i;
  return static_cast<int32_t>(best);
}

namespace cpu {

void markov_step(const MarkovStepParams& p, Stream& stream) {
  CpuStream& cpu = cpu_stream(stream);
  TF_CHECK(p.embed->layout == WeightLayout::kRowsBf16);
  const auto* table = static_cast<const uint16_t*>(p.embed->data);
  const int64_t wide = int64_t{p.hidden} + p.rank;
  Arena arena(p.workspace);
  double* e = arena.take<double>(int64_t{p.rows} * p.rank);
  double* xe = arena.take<double>(p.rows * wide);
  for (int64_t r = 0; r < p.rows; ++r) {
    const uint16_t* row = table + int64_t{p.prev[r]} * p.rank;
    float* values = narrow_half(xe + r * wide, wide);
    widen_bf16(p.x + r * p.x_stride, p.hidden, values);
    widen_bf16(row, p.rank, values + p.hidden);
    widen_half(xe + r * wide, wide);
    std::copy_n(xe + r * wide + p.hidden, p.rank, e + r * p.rank);
  }
  DenseJob jobs[2];
  jobs[0].w = p.head;
  jobs[0].x = e;
  jobs[0].x_stride = p.rank;
  jobs[0].y = p.logits;
  jobs[0].y_stride = p.logits_stride;
  jobs[1].w = p.confidence;
  jobs[1].x = xe;
  jobs[1].x_stride = wide;
  jobs[1].y = p.confidence_out;
  jobs[1].y_stride = 1;
  jobs[0].rows = jobs[1].rows = p.rows;
  dense(jobs, 2, cpu);
  for (int64_t r = 0; r < p.rows; ++r)
    for (int64_t v = 0; v < p.head->out; ++v)
      p.logits[r * p.logits_stride + v] += p.base[r * p.base_stride + v];
}

}  // namespace cpu
}  // namespace tensorfold
