// embed_rows: token rows become residual streams.
//
// streams[r][c] = table[ids[r]] for every stream c; pre[r] = (1, 0, ..., 0) (docs/model.md
// 2.2). An image row takes its embedding from `image_rows` instead of the table.
#pragma once

#include "kernels/op.h"
#include "kernels/weight_view.h"

namespace tensorfold {

struct EmbedRowsParams {
  int rows = 0;
  int hidden = 0;                        // H
  int hc = 0;                            // residual streams
  const int32_t* ids = nullptr;          // [rows]
  const WeightView* table = nullptr;     // kRowsBf16 [vocab, H]
  const int32_t* image_index = nullptr;  // [rows] row of image_rows, -1: text; or nullptr
  const uint16_t* image_rows = nullptr;  // bf16 [n, H]
  uint16_t* streams = nullptr;           // out bf16 [rows, hc, H]
  float* pre = nullptr;                  // out [rows, hc]
};

inline OpCost embed_rows_cost(const EmbedRowsParams& p) {
  return {int64_t{p.rows} * p.hidden * 2 * (1 + p.hc), 0};
}

namespace cpu {
void embed_rows(const EmbedRowsParams& p, Stream& stream);
}
}  // namespace tensorfold
