// engram_gate: adds Engram's gated value to the residual streams.
//
// kv = (K[0..n-1], V), each H wide. Per stream c, fp32 (docs/model.md 2.7):
//   dot = sum(X[c] * qw[c] * kw[c] * K[c]) * rsqrt(mean X[c]^2 + eps) * rsqrt(mean K[c]^2 + eps)
//         * H^-0.5
//   gate = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot)), 0 for dead rows (images, masked)
//   X[c] = bf16(X[c] + gate * V)
#pragma once

#include "kernels/op.h"

namespace tensorfold {

struct EngramGateParams {
  int rows = 0;
  int hidden = 0;  // H
  int hc = 0;      // n streams
  float eps = 0;
  const uint16_t* kv = nullptr;     // bf16 [rows, (n + 1) H]
  const float* q_weight = nullptr;  // [n, H]
  const float* k_weight = nullptr;  // [n, H]
  const uint8_t* dead = nullptr;    // [rows] 1: gate 0; nullptr: none
  uint16_t* streams = nullptr;      // in/out bf16 [rows, n, H]
  float* gates = nullptr;           // out [rows, n] or nullptr
};

inline OpCost engram_gate_cost(const EngramGateParams& p) {
  const int64_t x = int64_t{p.rows} * p.hc * p.hidden;
  return {x * 6 + int64_t{p.rows} * p.hidden * 2, x * 11};
}

namespace cpu {
void engram_gate(const EngramGateParams& p, Stream& stream);
}
}  // namespace tensorfold
