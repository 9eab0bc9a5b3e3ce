// head_logits: collapse, final norm and vocabulary projection of the rows that want logits.
//
// h = bf16(sum_c pre[c] * X[c]); n = bf16(RMSNorm(h; norm)); logits = head . n in fp32
// (docs/model.md 2.6). The head is this rank's range of the vocabulary; its input is never
// quantised. A row's logits are of class D whatever the row is (kernels/project.h).
#pragma once

#include "kernels/op.h"
#include "kernels/weight_view.h"

namespace tensorfold {

struct HeadLogitsParams {
  int rows = 0;                        // rows that want logits
  const int32_t* row_index = nullptr;  // [rows] into streams; nullptr: the first `rows`
  int hidden = 0;                      // H
  int hc = 0;
  float norm_eps = 0;
  const uint16_t* streams = nullptr;   // bf16 [.., hc, H]
  const float* pre = nullptr;          // [.., hc]
  const float* norm_weight = nullptr;  // [H]
  const WeightView* head = nullptr;    // [vocab slice, H]
  uint16_t* collapsed = nullptr;       // out bf16 [rows, H], before the norm; or nullptr
  float* logits = nullptr;             // out [rows, logits_stride]
  int64_t logits_stride = 0;
  Workspace workspace;
};

int64_t head_logits_workspace_bytes(int rows, int hidden);

inline OpCost head_logits_cost(const HeadLogitsParams& p) {
  OpCost c = weight_cost(*p.head, p.rows);
  c.bytes += int64_t{p.rows} * p.hc * p.hidden * 2;
  return c;
}

namespace cpu {
void head_logits(const HeadLogitsParams& p, Stream& stream);
}
}  // namespace tensorfold
