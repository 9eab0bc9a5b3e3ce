// project: one input, several weights of any format. y_i = W_i x for every row.
//
// The input may be normalised first (RMSNorm, bf16 result). Weights with quantise_input see the row
// rounded to e4m3 in blocks of 32; the others see bf16 (docs/model.md 2.1). Products are
// accumulated in fp32 in one fixed order per output and rounded once to the output's dtype; an
// fp32 output may be a rank's partial sum. Where a weight is kExl3 the first prompt_rows rows are
// of class P and the others of class D (docs/architecture.md, row invariance): each class has one
// order of summation. Every other weight has one order for both.
#pragma once

#include "kernels/op.h"
#include "kernels/weight_view.h"

namespace tensorfold {

inline constexpr int kProjectOutputsMax = 8;

struct ProjectOutput {
  const WeightView* weight = nullptr;  // [out, in]
  void* y = nullptr;                   // [rows, out], y_stride elements apart
  int64_t y_stride = 0;
  ValueType type = ValueType::kBf16;
  int64_t x_offset =
      0;  // elements behind x at which its own K inputs of a wider row begin; no norm
};

struct ProjectParams {
  int rows = 0;
  int prompt_rows = 0;          // of class P, ahead of those of class D
  int in = 0;                   // K, a multiple of 32
  const uint16_t* x = nullptr;  // bf16 [rows, K], x_stride elements apart
  int64_t x_stride = 0;
  const float* norm_weight = nullptr;  // [K]: RMSNorm of x first; nullptr: none
  float norm_eps = 0;
  int outputs = 0;
  ProjectOutput output[kProjectOutputsMax];
  Workspace workspace;
};

int64_t project_workspace_bytes(int rows, int in);

inline OpCost project_cost(const ProjectParams& p) {
  OpCost c{int64_t{p.rows} * p.in * 2, 0};
  for (int i = 0; i < p.outputs; ++i) {
    const WeightView& w = *p.output[i].weight;
    c.bytes += w.bytes() + int64_t{p.rows} * w.out * (p.output[i].type == ValueType::kF32 ? 4 : 2);
    c.operations += 2 * int64_t{p.rows} * w.in * w.out;
  }
  return c;
}

// Whether outputs take different parts of a row.
inline bool project_parts(const ProjectParams& p) {
  for (int i = 0; i < p.outputs; ++i)
    if (p.output[i].x_offset != 0) return true;
  return false;
}

// The same products, an output at a time: `one` is a project().
template <typename Project>
void project_each(const ProjectParams& p, const Project& one) {
  ProjectParams q = p;
  q.outputs = 1;
  for (int i = 0; i < p.outputs; ++i) {
    q.output[0] = p.output[i];
    q.x = p.x + p.output[i].x_offset;
    q.output[0].x_offset = 0;
    one(q);
  }
}

namespace cpu {
void project(const ProjectParams& p, Stream& stream);
}
}  // namespace tensorfold
