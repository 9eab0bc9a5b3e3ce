// One input, several weights (kernels/project.h): the input is normed and quantised once, then each
// weight's product runs over the form that it needs.
#include "kernels/project.h"

#include "engine/base/check.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/exl3_rows.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.cuh"

namespace tensorfold::cuda {

int64_t project_bytes(const WorkspaceShape& s) {
  return 2 * Pieces::padded(int64_t{s.rows} * s.widest_input * 2) + exl3_project_bytes(s);
}

namespace {

constexpr int kThreads = 256;

// A block per row: plain and quantised copies, each if wanted.
__global__ void __launch_bounds__(kThreads)
    project_input_kernel(ProjectParams p, uint16_t* plain, uint16_t* quantised) {
  extern __shared__ float shared[];
  float* row = shared + block_sum_floats(p.in);
  const int64_t r = blockIdx.x, at = r * p.in;
  const uint16_t* x = p.x + r * p.x_stride;
  for (int i = threadIdx.x; i < p.in; i += kThreads) row[i] = bf16_value(x[i]);
  __syncthreads();
  if (p.norm_weight != nullptr) {
    const float squares = block_sum(p.in, shared, [row](int i) { return row[i] * row[i]; });
    const float inverse = inverse_rms(squares, p.in, p.norm_eps);
    for (int i = threadIdx.x; i < p.in; i += kThreads)
      row[i] = round_bf16(p.norm_weight[i] * (row[i] * inverse));
    __syncthreads();
  }
  for (int i = threadIdx.x; i < p.in; i += kThreads) {  // whole warps: in is a multiple of 32
    if (plain != nullptr) plain[at + i] = to_bf16(row[i]);
    if (quantised != nullptr) quantised[at + i] = to_bf16(fake_fp8_lanes(row[i]));
  }
}

}  // namespace

void project(const ProjectParams& p, Stream& stream) {
  if (p.rows == 0) return;
  CudaStream& s = cuda_stream(stream);
  if (project_parts(p)) {
    TF_CHECK(p.norm_weight == nullptr);
    bool any = false;
    for (int i = 0; i < p.outputs; ++i) any = any || p.output[i].weight->quantise_input;
    if (any) return project_each(p, [&](const ProjectParams& q) { project(q, stream); });
  }
  Pieces pieces(p.workspace);
  bool any_plain = false, any_quantised = false;
  for (int i = 0; i < p.outputs; ++i)
    (p.output[i].weight->quantise_input ? any_quantised : any_plain) = true;
  const int64_t n = int64_t{p.rows} * p.in;
  const bool as_given = p.norm_weight == nullptr;
  uint16_t* plain = any_plain && !as_given ? pieces.take<uint16_t>(n) : nullptr;
  uint16_t* quantised = any_quantised ? pieces.take<uint16_t>(n) : nullptr;
  if (plain != nullptr || quantised != nullptr) {
    const int bytes = (block_sum_floats(p.in) + p.in) * 4;
    allow_shared(s, project_input_kernel, bytes);
    project_input_kernel<<<p.rows, kThreads, bytes, s.handle()>>>(p, plain, quantised);
    s.launched("project_input", p.rows, p.in);
  }
  for (int i = 0; i < p.outputs; ++i) {
    const ProjectOutput& o = p.output[i];
    TF_CHECK_EQ(o.weight->in, p.in);
    if (o.weight->layout == WeightLayout::kExl3) continue;
    DenseProduct d;
    d.w = o.weight;
    d.x = o.weight->quantise_input ? quantised : as_given ? p.x + o.x_offset : plain;
    d.x_stride = !o.weight->quantise_input && as_given ? p.x_stride : p.in;
    d.rows = p.rows;
    d.y = o.y;
    d.y_stride = o.y_stride;
    d.type = o.type;
    dense(d, s);
  }
  exl3_project(p, as_given ? p.x : plain, as_given ? p.x_stride : p.in, pieces, s);
}

}  // namespace tensorfold::cuda
