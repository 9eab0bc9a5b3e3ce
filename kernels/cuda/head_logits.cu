// Vocabulary logits (kernels/head_logits.h).
#include "kernels/head_logits.h"

#include "kernels/cuda/dense.h"
#include "kernels/cuda/exl3_rows.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.cuh"

namespace tensorfold::cuda {

int64_t head_logits_bytes(const WorkspaceShape& s) {
  return Pieces::padded(int64_t{s.rows} * s.hidden * 2) + exl3_logits_bytes(s);
}

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) head_input_kernel(HeadLogitsParams p, uint16_t* out) {
  extern __shared__ float shared[];
  float* row = shared + block_sum_floats(p.hidden);
  const int64_t i = blockIdx.x, h = p.hidden;
  const int64_t r = p.row_index != nullptr ? p.row_index[i] : i;
  const uint16_t* x = p.streams + r * p.hc * h;
  const float* pre = p.pre + r * p.hc;
  for (int k = threadIdx.x; k < p.hidden; k += kThreads) {
    float sum = bf16_value(x[k]) * pre[0];
    for (int c = 1; c < p.hc; ++c) sum += bf16_value(x[c * h + k]) * pre[c];
    row[k] = round_bf16(sum);
    if (p.collapsed != nullptr) p.collapsed[i * h + k] = to_bf16(row[k]);
  }
  __syncthreads();
  const float squares = block_sum(p.hidden, shared, [row](int k) { return row[k] * row[k]; });
  const float inverse = inverse_rms(squares, p.hidden, p.norm_eps);
  for (int k = threadIdx.x; k < p.hidden; k += kThreads)
    out[i * h + k] = to_bf16(p.norm_weight[k] * (row[k] * inverse));
}

}  // namespace

void head_logits(const HeadLogitsParams& p, Stream& stream) {
  if (p.rows == 0) return;
  CudaStream& s = cuda_stream(stream);
  Pieces pieces(p.workspace);
  uint16_t* x = pieces.take<uint16_t>(int64_t{p.rows} * p.hidden);
  const int bytes = (block_sum_floats(p.hidden) + p.hidden) * 4;
  allow_shared(s, head_input_kernel, bytes);
  head_input_kernel<<<p.rows, kThreads, bytes, s.handle()>>>(p, x);
  s.launched("head_input", p.rows, p.hidden, p.hc);
  if (p.head->layout == WeightLayout::kExl3) return exl3_logits(p, x, pieces, s);
  DenseProduct d;
  d.w = p.head;
  d.x = x;
  d.x_stride = p.hidden;
  d.rows = p.rows;
  d.y = p.logits;
  d.y_stride = p.logits_stride;
  dense(d, s);
}

}  // namespace tensorfold::cuda
