// Scores of index keys (kernels/index_select.h): queries as FP4 codes, exact integer products.
//
// S_j = sum_h w_h max(0, q_h . key_j). A product of two FP4 blocks of 32 is an integer times a
// power of two; blocks are added ascending in fp32, heads ascending. Pool blocks and the offsets of
// their parts are multiples of 64 bytes (engine/cache/cache_layout.h).
#pragma once

#include "kernels/cuda/ops.h"

namespace tensorfold::cuda {

struct IndexQueries {
  int8_t* codes = nullptr;   // [rows, heads, d] twice the e2m1 values
  float* scales = nullptr;   // [rows, heads, d / 32] a quarter of the UE8M0 scale
  float* weights = nullptr;  // [rows, heads] bf16(iw * scale)
};

int64_t index_queries_bytes(int rows, int heads, int dim);
IndexQueries take_queries(Pieces& pieces, int rows, int heads, int dim);

// RoPE and quantisation of all rows' queries.
void index_queries(const IndexSelectParams& p, const IndexQueries& q, CudaStream& stream);

// scores [rows, stride] of rows first..first + rows: entries that a row sees; rows that need none
// (few entries, none asked for) are left.
void index_scores(const IndexSelectParams& p, const IndexQueries& q, int first, int rows,
                  float* scores, int64_t stride, CudaStream& stream);

}  // namespace tensorfold::cuda
