// Vocabulary logits (kernels/head_logits.h).
#include "kernels/head_logits.h"

#include "kernels/cpu/dense.h"
#include "kernels/cpu/row_ops.h"

namespace tensorfold {

int64_t head_logits_workspace_bytes(int rows, int hidden) {
  return cpu::Arena::padded(int64_t{rows} * hidden * 8);
}

namespace cpu {

void head_logits(const HeadLogitsParams& p, Stream& stream) {
  CpuStream& cpu = cpu_stream(stream);
  const int64_t h = p.hidden;
  Arena arena(p.workspace);
  double* x = arena.take<double>(p.rows * h);
  cpu.parallel_for(p.rows, p.rows * h * (p.hc + 4) * 2, [&](int64_t i, int) {
    const int64_t r = p.row_index != nullptr ? p.row_index[i] : i;
    float* row = narrow_half(x + i * h, h);
    collapse(p.streams + r * p.hc * h, p.pre + r * p.hc, p.hc, h, row);
    if (p.collapsed != nullptr) narrow_bf16(row, h, p.collapsed + i * h);
    rms_norm(row, p.norm_weight, p.hidden, p.norm_eps, row);
    widen_half(x + i * h, h);
  });
  DenseJob job;
  job.w = p.head;
  job.x = x;
  job.x_stride = h;
  job.rows = p.rows;
  job.y = p.logits;
  job.y_stride = p.logits_stride;
  dense(&job, 1, cpu);
}

}  // namespace cpu
}  // namespace tensorfold
