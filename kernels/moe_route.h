// moe_route: which experts a row goes to and with what weight.
//
// s = sqrt(softplus(W_gate x / temperature)) in fp32. The k best of s + bias (bias_vl for image
// rows; ties: lower id), in descending order; weight_e = scale * s_e / (sum of the k s + 1e-20),
// from unbiased scores (docs/model.md 2.5). softplus(v) = v above 20.
#pragma once

#include "kernels/op.h"
#include "kernels/weight_view.h"

namespace tensorfold {

struct MoeRouteParams {
  int rows = 0;
  int prompt_rows = 0;  // of class P, ahead of those of class D: a device may sum them otherwise
  int hidden = 0;       // H
  int experts = 0;
  int topk = 0;
  float scale = 0;
  float temperature = 1;
  const uint16_t* x = nullptr;       // bf16 [rows, H]
  const WeightView* gate = nullptr;  // [experts, H]
  const float* bias = nullptr;       // [experts]
  const float* bias_vl = nullptr;    // [experts] or nullptr: bias
  const uint8_t* image = nullptr;    // [rows] 1: image row; nullptr: none
  float* scores = nullptr;           // out [rows, experts] unbiased
  int32_t* ids = nullptr;            // out [rows, topk]
  float* weights = nullptr;          // out [rows, topk]
  Workspace workspace;               // project_workspace_bytes(rows, hidden)
};

inline OpCost moe_route_cost(const MoeRouteParams& p) {
  OpCost c = weight_cost(*p.gate, p.rows);
  c.operations += int64_t{p.rows} * p.experts * (20 + p.topk);
  return c;
}

namespace cpu {
void moe_route(const MoeRouteParams& p, Stream& stream);
}
}  // namespace tensorfold
