// index_select: which global entries a row attends to.
//
// q = FP4(RoPE(iq, p)) per head (blocks of 32, UE8M0); w = bf16(iw * scale). Over visible entries
// S_j = sum_h w_h * max(0, q_h . key_j): fp32, heads in order; or, with bf16_scores, q.key, each
// product and the sum are rounded to bf16 as in the reference. (docs/model.md 2.4 step 5)
// builds_candidates: B_b = max of S over block b; the block of the newest visible entry is pinned;
//   the best `candidate_blocks` blocks are kept (ties: lower block), written ascending.
// uses_candidates: entries outside the kept blocks score -inf.
// Selected: the min(topk, visible) best, ties to the lower entry, ascending.
// With at most topk visible entries everything is selected and scoring is skipped, unless
// `scores` asks for it.
#pragma once

#include "kernels/attention.h"

namespace tensorfold {

struct IndexSelectParams {
  int rows = 0;
  const AttentionSlice* slice = nullptr;
  const int32_t* row_slice = nullptr;  // [rows]
  int heads = 0;
  int dim = 0;  // d
  int rope_dim = 0;
  const uint16_t* iq = nullptr;  // bf16 [rows, heads, d]
  const uint16_t* iw = nullptr;  // bf16 [rows, heads], unscaled weights_proj output
  float weight_scale = 0;        // (d * heads)^-0.5
  const float* rope = nullptr;   // [rows, rope_dim / 2, 2]
  EntryPool pool;
  int topk = 0;
  bool bf16_scores = false;
  bool builds_candidates = false;
  bool uses_candidates = false;
  int candidate_blocks = 0;  // kept blocks at most
  int candidate_block_size = 0;
  int32_t* candidates = nullptr;       // in or out [rows, candidate_blocks], ascending
  int32_t* candidate_count = nullptr;  // in or out [rows]
  int32_t* selected = nullptr;         // out [rows, topk], ascending; unused places -1
  int32_t* selected_count = nullptr;   // out [rows]
  float* scores = nullptr;  // out [rows, scores_stride] before candidate masking, or nullptr
  int64_t scores_stride = 0;
  int64_t entries_max = 0;  // of any row; sizes the workspace
  Workspace workspace;
};

int64_t index_select_workspace_bytes(int heads, int dim, int64_t entries_max, int lanes);

inline OpCost index_select_cost(const IndexSelectParams& p, int64_t visible_total) {
  return {visible_total * (p.dim / 2 + p.dim / 32), visible_total * p.heads * (2 * p.dim + 3)};
}

// Candidate blocks of one row from its scores: the rule above, for tests and other backends.
int select_candidate_blocks(const float* scores, int64_t visible, int block_size, int blocks_max,
                            int32_t* out);

namespace cpu {
void index_select(const IndexSelectParams& p, Stream& stream);
}
}  // namespace tensorfold
