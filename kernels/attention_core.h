// attention_core: RoPE of the queries, softmax over window rows and selected entries with a sink
// per head, inverse RoPE of the result.
//
// Keys (= values) of a row, in slots walked in blocks of 64: window rows oldest first, then its
// selected entries ascending, without gaps. Per head (docs/model.md 2.4
// steps 6, 7): s = q . k * D^-0.5; running maximum m starting at
// -1e30; P = exp(s - m); the denominator adds fp32 P, the numerator adds bf16(P) * v; both are
// rescaled when m grows; last the denominator gets exp(sink - m). o = bf16(numerator /
// denominator), then the inverse rotation, bf16. No key at all gives zero.
#pragma once

#include "kernels/attention.h"
#include "kernels/formats.h"

namespace tensorfold {

inline constexpr int kAttentionBlock = 64;  // key slots per softmax block

struct AttentionCoreParams {
  int rows = 0;
  const AttentionSlice* slice = nullptr;
  const int32_t* row_slice = nullptr;  // [rows]
  int heads = 0;                       // of this rank
  int head_dim = 0;                    // D
  int rope_dim = 0;
  int window = 0;
  const uint16_t* q = nullptr;       // bf16 [rows, heads, D], not rotated
  const float* rope = nullptr;       // [rows, rope_dim / 2, 2]; nullptr: no rotation
  const float* sink = nullptr;       // [heads]
  const uint16_t* staged = nullptr;  // bf16 window rows (attention_append)
  bool whole_slice = false;          // drafter: every row sees all staged rows of its slice
  const int32_t* window_list =
      nullptr;  // [rows, window] staged rows by slot, -1: none; replaces ranges
  const int32_t* selected = nullptr;  // [rows, topk] or nullptr: window only
  const int32_t* selected_count = nullptr;
  int topk = 0;
  EntryPool pool;           // of the KV source
  uint16_t* out = nullptr;  // bf16 [rows, heads, D]
  Workspace workspace;
};

int64_t attention_core_workspace_bytes(int heads, int head_dim, int lanes);

// staged, entries: different window rows and packed entries that are read; keys_total: of all rows.
inline OpCost attention_core_cost(const AttentionCoreParams& p, int64_t staged, int64_t entries,
                                  int64_t keys_total) {
  return {staged * p.head_dim * 2 + entries * main_entry_bytes(p.head_dim) +
              int64_t{p.rows} * p.heads * p.head_dim * 4,
          keys_total * p.heads * p.head_dim * 4};
}

namespace cpu {
void attention_core(const AttentionCoreParams& p, Stream& stream);
}
}  // namespace tensorfold
