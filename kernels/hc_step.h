// hc_step: what happens between two sublayers, on the residual streams (single-pass, staggered
// hyper-connections).
//
// In this order, every part optional (docs/model.md 2.3, golden rounding points):
// 1. mix (y set): X[k] = bf16(post_in[k] * bf16(y) + sum_j comb_in[j][k] * X[j]), fp32 inside.
// 2. tap (tap set): tap = bf16(mean over streams of X).
// 3. coefficients (fn set): v = flatten(X), m = (fn v) * rsqrt(mean(v^2) + norm_eps);
//    pre_k = sigmoid(m_k * scale0 + base_k) + hc_eps; post_k = 2 sigmoid(m_{n+k} * scale1 + ...);
//    comb = Sinkhorn(m_{2n..} * scale2 + ...): softmax over k + hc_eps, one column pass, then
//    iters - 1 row and column passes.
// 4. collapse (normed or collapsed set): h = bf16(sum_c pre_in[c] * X[c]);
//    normed = bf16(norm_weight * (h * rsqrt(mean(h^2) + norm_eps))).
// pre_in are the coefficients of the previous sublayer, so pre_out must not alias pre_in.
#pragma once

#include "kernels/op.h"
#include "kernels/weight_view.h"

namespace tensorfold {

inline constexpr int kHcMax = 8;  // residual streams

struct HcStepParams {
  int rows = 0;
  int prompt_rows = 0;  // of class P, ahead of those of class D: a device may sum them otherwise
  int hidden = 0;       // H
  int hc = 0;           // n streams
  int sinkhorn_iters = 0;
  float norm_eps = 0;
  float hc_eps = 0;
  uint16_t* streams = nullptr;     // in/out bf16 [rows, n, H]
  const float* y = nullptr;        // [rows, H] sublayer output, summed over ranks
  const float* post_in = nullptr;  // [rows, n]
  const float* comb_in = nullptr;  // [rows, n, n], [j][k]
  uint16_t* tap = nullptr;         // out bf16 [rows] x H, tap_stride apart
  int64_t tap_stride = 0;
  const WeightView* fn = nullptr;      // kPanelF32 [(2 + n) n, n H]
  const float* scale = nullptr;        // [3]
  const float* base = nullptr;         // [(2 + n) n]
  float* mixes = nullptr;              // [rows, (2 + n) n], scratch that the caller may read
  float* pre_out = nullptr;            // [rows, n]
  float* post_out = nullptr;           // [rows, n]
  float* comb_out = nullptr;           // [rows, n, n]
  const float* pre_in = nullptr;       // [rows, n]
  const float* norm_weight = nullptr;  // [H]
  uint16_t* collapsed = nullptr;       // out bf16 [rows, H] or nullptr
  uint16_t* normed = nullptr;          // out bf16 [rows, H] or nullptr
  Workspace workspace;
};

int64_t hc_step_workspace_bytes(int rows, int hidden, int hc);

inline OpCost hc_step_cost(const HcStepParams& p) {
  const int64_t x = int64_t{p.rows} * p.hc * p.hidden;
  OpCost c{x * 4 + int64_t{p.rows} * p.hidden * 6, 0};
  if (p.y != nullptr) c.operations += x * 2 * (p.hc + 1);
  if (p.fn != nullptr) {
    c.bytes += p.fn->bytes();
    c.operations += 2 * x * p.fn->out;
  }
  c.operations += 2 * x;
  return c;
}

namespace cpu {
void hc_step(const HcStepParams& p, Stream& stream);
}
}  // namespace tensorfold
