// Scores of index keys (kernels/index_select.h): queries as FP4 codes, exact integer products.
//
// S_j = sum_h w_h max(0, q_h . key_j). A product of two FP4 blocks of 32 is an integer times a
// power of two; blocks are added ascending in fp32, heads ascending. Pool blocks and the offsets of
// their parts are multiples of 64 bytes (engine/cache/cache_layout.h).
#pragma once

#include "kernels/cuda/ops.h"

namespace tensorfold::cuda {

// Queries of a row, heads in pairs (an odd one gets a head of zeros), channels up to 128: codes as
// the matrix units take them, four scales a head, weights, weights times scales, flags.
struct IndexQueries {
  std::byte* rows = nullptr;  // [rows, row_bytes]
  int64_t row_bytes = 0;      // a multiple of 16
};

int64_t index_queries_bytes(int rows, int heads, int dim);
IndexQueries take_queries(Pieces& pieces, int rows, int heads, int dim);

// RoPE and quantisation of all rows' queries.
void index_queries(const IndexSelectParams& p, const IndexQueries& q, CudaStream& stream);

// scores [rows, stride] of rows first..first + rows: entries that a row sees; rows that need none
// (few entries, none asked for) are left.
void index_scores(const IndexSelectParams& p, const IndexQueries& q, int first, int rows,
                  float* scores, int64_t stride, CudaStream& stream);

// The topk best entries of rows first..first + rows, from their scores: exact, ties to the lower
// entry, ascending (index_select.cu). Rows that see no more than topk are left.
void index_choose(const IndexSelectParams& p, int first, int rows, const float* scores,
                  int64_t stride, CudaStream& stream);

}  // namespace tensorfold::cuda
