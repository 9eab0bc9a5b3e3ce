// markov_step: one link of the drafter's Markov chain, for several sequences.
//
// e = embed[prev] (bf16 [R]); logits[v] = base[v] + head[v] . e in fp32, over this rank's
// vocabulary range; confidence = proj . concat(x, e) in fp32, x the draft row's collapsed hidden
// before its norm (docs/model.md 4.4, 4.5).
#pragma once

#include "kernels/op.h"
#include "kernels/weight_view.h"

namespace tensorfold {

struct MarkovStepParams {
  int rows = 0;                            // sequences
  int rank = 0;                            // R
  int hidden = 0;                          // H
  const int32_t* prev = nullptr;           // [rows] previous token
  const WeightView* embed = nullptr;       // kRowsBf16 [vocab, R]
  const WeightView* head = nullptr;        // [vocab slice, R]
  const WeightView* confidence = nullptr;  // [1, H + R]
  const uint16_t* x = nullptr;             // bf16 [rows] x H, x_stride apart
  int64_t x_stride = 0;
  const float* base = nullptr;  // [rows] x vocab slice, base_stride apart
  int64_t base_stride = 0;
  float* logits = nullptr;  // out [rows] x vocab slice, logits_stride apart
  int64_t logits_stride = 0;
  float* confidence_out = nullptr;  // out [rows]
  Workspace workspace;
};

int64_t markov_step_workspace_bytes(int rows, int rank, int hidden);

inline OpCost markov_step_cost(const MarkovStepParams& p) {
  OpCost c = weight_cost(*p.head, p.rows);
  c.bytes += int64_t{p.rows} * p.head->out * 8 + p.confidence->bytes();
  return c;
}

// The lowest index of the largest value; NaN never wins.
int32_t argmax_f32(const float* values, int64_t n);

namespace cpu {
void markov_step(const MarkovStepParams& p, Stream& stream);
}
}  // namespace tensorfold
