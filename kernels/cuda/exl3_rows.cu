// See exl3_rows.h.
#include "kernels/cuda/exl3_rows.h"

#include <algorithm>

#include "engine/base/check.h"
#include "kernels/cuda/exl3_dense.h"
#include "kernels/cuda/exl3_layout.h"
#include "kernels/cuda/exl3_prefill.h"
#include "kernels/cuda/moe_decode.h"

namespace tensorfold::cuda {
namespace {

int padded(int n) { return (n + kExl3Block - 1) / kExl3Block * kExl3Block; }

// How many of the rows take the kernels of class P.
int prompt_rows_of(int rows, int prompt_rows) {
  TF_CHECK_LE(prompt_rows, rows);
#ifdef TF_PLANTED_FAULT  // a short chunk of a prompt goes where generated rows go
  if (prompt_rows < 32) return 0;
#endif
  return prompt_rows;
}

// Output i of `p` for rows from `first` on.
Exl3DenseJob job_of(const ProjectParams& p, int i, const uint16_t* x, int64_t x_stride, int first) {
  const ProjectOutput& o = p.output[i];
  Exl3DenseJob job;
  job.weight = o.weight->exl3;
  job.in = o.weight->in;
  job.out = o.weight->out;
  job.x = x + o.x_offset + first * x_stride;
  job.x_stride = x_stride;
  const int64_t at = first * o.y_stride;
  job.y = o.type == ValueType::kF32 ? static_cast<void*>(static_cast<float*>(o.y) + at)
                                    : static_cast<void*>(static_cast<uint16_t*>(o.y) + at);
  job.y_stride = o.y_stride;
  job.type = o.type;
  return job;
}

void run_dense(Exl3DenseParams& d, int widest, Pieces& pieces, CudaStream& stream) {
  if (d.rows == 0 || d.jobs == 0) return;
  d.workspace_bytes =
      exl3_dense_workspace_bytes(d.rows, widest, std::min(d.jobs, kExl3GroupedWeights));
  d.workspace = pieces.take<std::byte>(d.workspace_bytes);
  const char* where = "exl3_dense";
  stream.check(exl3_dense(d, stream.handle(), &where), where);
  stream.launched("exl3_dense", d.rows, d.job[0].in, d.job[0].out);
}

// The group of `rows` rows that begins at `first`.
MoeDecodeParams group_of(const MoeExpertsParams& p, int first, int rows) {
  MoeDecodeParams m;
  m.rows = rows;
  m.hidden = p.hidden;
  m.intermediate = p.intermediate;
  m.experts = p.experts;
  m.topk = p.topk;
  m.swiglu_limit = p.swiglu_limit;
  m.round_outputs = p.round_outputs;
  m.x = p.x + int64_t{first} * p.hidden;
  m.x_stride = p.hidden;
  m.ids = p.ids + int64_t{first} * p.topk;
  m.weights = p.weights + int64_t{first} * p.topk;
  m.expert = p.exl3_on_device;
  m.y = p.y + int64_t{first} * p.hidden;
  m.workspace = p.workspace.data;
  m.workspace_bytes = p.workspace.bytes;
  return m;
}

}  // namespace

int64_t exl3_project_bytes(const WorkspaceShape& s) {
  if (!s.exl3) return 0;
  const int widest = padded(s.widest_input);
  return Pieces::padded(exl3_prefill_workspace_bytes(s.rows, widest)) +
         Pieces::padded(exl3_dense_workspace_bytes(s.rows, widest, kExl3GroupedWeights));
}

void exl3_project(const ProjectParams& p, const uint16_t* x, int64_t x_stride, Pieces& pieces,
                  CudaStream& stream) {
  const int prompt_rows = prompt_rows_of(p.rows, p.prompt_rows);
  const int64_t bytes = exl3_prefill_workspace_bytes(prompt_rows, padded(p.in));
  std::byte* rotated = nullptr;  // of one weight after the other
  Exl3DenseParams generated;
  generated.rows = p.rows - prompt_rows;
  for (int i = 0; i < p.outputs; ++i) {
    if (p.output[i].weight->layout != WeightLayout::kExl3) continue;
    if (generated.rows > 0)
      generated.job[generated.jobs++] = job_of(p, i, x, x_stride, prompt_rows);
    if (prompt_rows == 0) continue;
    if (rotated == nullptr) rotated = pieces.take<std::byte>(bytes);
    const Exl3DenseJob job = job_of(p, i, x, x_stride, 0);
    const char* where = "exl3_prefill";
    stream.check(exl3_prefill(job, prompt_rows, rotated, bytes, stream.handle(), &where), where);
    stream.launched("exl3_prefill", prompt_rows, job.in, job.out);
  }
  run_dense(generated, padded(p.in), pieces, stream);
}

int64_t exl3_logits_bytes(const WorkspaceShape& s) {
  return s.exl3 ? Pieces::padded(exl3_dense_workspace_bytes(s.rows, padded(s.hidden), 1)) : 0;
}

void exl3_logits(const HeadLogitsParams& p, const uint16_t* x, Pieces& pieces, CudaStream& stream) {
  Exl3DenseParams d;
  d.rows = p.rows;
  d.jobs = 1;
  d.job[0] = {p.head->exl3, p.head->in, p.head->out,     x,
              p.hidden,     p.logits,   p.logits_stride, ValueType::kF32};
  run_dense(d, padded(p.head->in), pieces, stream);
}

int64_t exl3_experts_bytes(const WorkspaceShape& s) {
  if (!s.exl3) return 0;
  return std::max(moe_prefill_workspace_bytes(std::min(s.rows, kExl3PromptRows), s.hidden,
                                              s.intermediate, s.topk),
                  moe_decode_workspace_bytes(std::min(s.rows, kExl3GeneratedRows), s.hidden,
                                             s.intermediate, s.topk));
}

void exl3_experts(const MoeExpertsParams& p, CudaStream& stream) {
  const int prompt_rows = prompt_rows_of(p.rows, p.prompt_rows);
  for (int first = 0; first < prompt_rows; first += kExl3PromptRows) {
    const int rows = std::min(kExl3PromptRows, prompt_rows - first);
    const char* where = "moe_prefill";
    stream.check(moe_prefill(group_of(p, first, rows), stream.handle(), &where), where);
    stream.launched("moe_prefill", rows, p.hidden, p.intermediate);
  }
  for (int first = prompt_rows; first < p.rows; first += kExl3GeneratedRows) {
    const int rows = std::min(kExl3GeneratedRows, p.rows - first);
    const char* where = "moe_decode";
    stream.check(moe_decode(group_of(p, first, rows), stream.handle(), &where), where);
    stream.launched("moe_decode", rows, p.hidden, p.intermediate);
  }
}

}  // namespace tensorfold::cuda
