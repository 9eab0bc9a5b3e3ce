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

namespace cpu {
void project(const ProjectParams& p, Stream& stream);
}
}  // namespace tensorfold
