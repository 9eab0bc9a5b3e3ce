// One input, several weights (kernels/project.h).
#include "kernels/project.h"

#include "engine/base/check.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/formats.h"

namespace tensorfold {

int64_t project_workspace_bytes(int rows, int in) {
  return 2 * cpu::Arena::padded(int64_t{rows} * in * 8);
}

namespace cpu {

void project(const ProjectParams& p, Stream& stream) {
  if (project_parts(p)) {
    TF_CHECK(p.norm_weight == nullptr);
    return project_each(p, [&](const ProjectParams& q) { project(q, stream); });
  }
  CpuStream& cpu = cpu_stream(stream);
  Arena arena(p.workspace);
  // 1. The input widened, once as it is and once quantised, as the weights need it.
  bool plain = false, quantised = false;
  for (int i = 0; i < p.outputs; ++i)
    (p.output[i].weight->quantise_input ? quantised : plain) = true;
  const int64_t n = int64_t{p.rows} * p.in;
  double* x = arena.take<double>(n);
  double* q = quantised ? arena.take<double>(n) : nullptr;
  cpu.parallel_for(p.rows, n * (quantised ? 20 : 2), [&](int64_t r, int) {
    double* row = x + r * p.in;
    float* values = narrow_half(row, p.in);
    widen_bf16(p.x + r * p.x_stride, p.in, values);
    if (p.norm_weight != nullptr) rms_norm(values, p.norm_weight, p.in, p.norm_eps, values);
    if (quantised) {
      fake_quantise_fp8(values, p.in, narrow_half(q + r * p.in, p.in));
      widen_half(q + r * p.in, p.in);
    }
    if (plain) widen_half(row, p.in);
  });
  // 2. The products.
  DenseJob jobs[kProjectOutputsMax];
  for (int i = 0; i < p.outputs; ++i) {
    const ProjectOutput& o = p.output[i];
    TF_CHECK_EQ(o.weight->in, p.in);
    jobs[i].w = o.weight;
    jobs[i].x = o.weight->quantise_input ? q : x;
    jobs[i].x_stride = p.in;
    jobs[i].rows = p.rows;
    jobs[i].y = o.y;
    jobs[i].y_stride = o.y_stride;
    jobs[i].type = o.type;
  }
  dense(jobs, p.outputs, cpu);
}

}  // namespace cpu
}  // namespace tensorfold
