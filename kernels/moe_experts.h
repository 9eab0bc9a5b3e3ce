// moe_experts: the routed experts and the shared one, as one fp32 partial sum.
//
// Expert e of row x with weight w_e: g = bf16(w1 x), u = bf16(w3 x); g = min(g, limit),
// u = clamp(u, -limit, limit); z = bf16((silu(g) * u) * w_e); y_e = w2 z. y = sum of y_e in
// ascending expert id, fp32, the shared expert (weight 1) last (docs/model.md 2.5).
// round_outputs: each y_e is rounded to bf16 before it is added (one rank: reference arithmetic);
// off where y_e is a partial over the intermediate dimension. Classes of rows: kernels/project.h.
#pragma once

#include "kernels/op.h"
#include "kernels/weight_view.h"

namespace tensorfold {

inline constexpr int kExpertsPerTokenMax = 16;

struct ExpertWeights {
  WeightView w1, w3;  // [I, H]
  WeightView w2;      // [H, I]
};

struct MoeExpertsParams {
  int rows = 0;
  int prompt_rows = 0;   // of class P, ahead of those of class D
  int hidden = 0;        // H
  int intermediate = 0;  // I of this rank
  int experts = 0;
  int topk = 0;
  float swiglu_limit = 0;
  bool round_outputs = false;
  const uint16_t* x = nullptr;            // bf16 [rows, H]
  const int32_t* ids = nullptr;           // [rows, topk]
  const float* weights = nullptr;         // [rows, topk]
  const ExpertWeights* expert = nullptr;  // [experts]; absent (other rank's): contributes nothing
  const ExpertWeights* shared = nullptr;  // nullptr or absent: none on this rank
  // The array `expert` in device memory, with the shared one behind it, where the device's memory
  // is not the host's.
  const ExpertWeights* expert_on_device = nullptr;  // [experts + 1]
  // The same in device memory where all of them are kExl3; then it is what is read.
  const Exl3Expert* exl3_on_device = nullptr;  // [experts + 1]
  float* y = nullptr;                          // out [rows, H]
  Workspace workspace;
};

int64_t moe_experts_workspace_bytes(int rows, int hidden, int intermediate, int experts, int topk);

// `distinct`: experts that the rows touch, the shared one included.
inline OpCost moe_experts_cost(const MoeExpertsParams& p, int64_t distinct) {
  const int64_t weights = int64_t{3} * p.hidden * p.intermediate;
  return {distinct * weights * 2 + int64_t{p.rows} * p.hidden * 6,
          2 * int64_t{p.rows} * (p.topk + 1) * weights};
}

namespace cpu {
void moe_experts(const MoeExpertsParams& p, Stream& stream);
}
}  // namespace tensorfold
