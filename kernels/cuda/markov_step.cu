// One link of the drafter's Markov chain (kernels/markov_step.h).
#include "kernels/markov_step.h"

#include "engine/base/check.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.cuh"

namespace tensorfold::cuda {

int64_t markov_step_bytes(const WorkspaceShape& s) {
  return Pieces::padded(int64_t{s.rows} * s.markov_rank * 2) +
         Pieces::padded(int64_t{s.rows} * (s.hidden + s.markov_rank) * 2);
}

namespace {

__global__ void markov_input_kernel(MarkovStepParams p, const uint16_t* table, uint16_t* e,
                                    uint16_t* xe) {
  const int64_t r = blockIdx.x, wide = p.hidden + p.rank;
  // A row of logits that held a NaN left no token.
  const uint16_t* row = table + int64_t{max(p.prev[r], 0)} * p.rank;
  for (int i = threadIdx.x; i < p.hidden; i += blockDim.x)
    xe[r * wide + i] = p.x[r * p.x_stride + i];
  for (int i = threadIdx.x; i < p.rank; i += blockDim.x) {
    e[r * p.rank + i] = row[i];
    xe[r * wide + p.hidden + i] = row[i];
  }
}

__global__ void markov_add_kernel(MarkovStepParams p, int out) {
  const int v = blockIdx.x * blockDim.x + threadIdx.x;
  const int64_t r = blockIdx.y;
  if (v < out) p.logits[r * p.logits_stride + v] += p.base[r * p.base_stride + v];
}

}  // namespace

void markov_step(const MarkovStepParams& p, Stream& stream) {
  TF_CHECK(p.embed->layout == WeightLayout::kRowsBf16);
  if (p.rows == 0) return;
  CudaStream& s = cuda_stream(stream);
  Pieces pieces(p.workspace);
  const int64_t wide = int64_t{p.hidden} + p.rank;
  uint16_t* e = pieces.take<uint16_t>(int64_t{p.rows} * p.rank);
  uint16_t* xe = pieces.take<uint16_t>(p.rows * wide);
  markov_input_kernel<<<p.rows, 128, 0, s.handle()>>>(
      p, static_cast<const uint16_t*>(p.embed->data), e, xe);
  s.launched("markov_input", p.rows, p.rank, p.hidden);
  DenseProduct d;
  d.w = p.head;
  d.x = e;
  d.x_stride = p.rank;
  d.rows = p.rows;
  d.y = p.logits;
  d.y_stride = p.logits_stride;
  dense(d, s);
  DenseProduct c;
  c.w = p.confidence;
  c.x = xe;
  c.x_stride = wide;
  c.rows = p.rows;
  c.y = p.confidence_out;
  c.y_stride = 1;
  dense_fp32(c, s);
  constexpr int kThreads = 256;
  const int out = p.head->out;
  markov_add_kernel<<<dim3(blocks_of(out, kThreads), p.rows), kThreads, 0, s.handle()>>>(p, out);
  s.launched("markov_add", p.rows, out);
}

}  // namespace tensorfold::cuda
