// attention_append: new rows enter the cache. RoPE, quantisation, ring and pool writes, compressor
// and index key; and the query latent's norm, which is due at the same time.
//
// Query part (qr set), per row: qr = RMSNorm(qr; q_norm), bf16, in place (docs/model.md 2.4 step
// 1). Window part (kv set), per row at position p (docs/model.md 2.4 step 2):
//   k = RMSNorm(kv; kv_norm) bf16; RoPE(k, p) bf16; e4m3 in blocks of 32 over all D channels;
//   stored packed at ring[p mod ring_rows]. The step's window rows are also staged, dequantised:
//   for each slice the `history` rows before it (from the ring), then its own.
// Source part (a set), per entry j that a row completes (step 3):
//   ratio 2: latent = RMSNorm(bf16(sum_i softmax_i(g_i) a_i)), the softmax per channel over the two
//   positions of the pair, a and g fp32; inputs are kept in the pair ring by position, so a pair
//   reopened by a rollback is pooled again. ratio 1: latent = RMSNorm(a), a bf16.
//   index key = FP4(RoPE(RMSNorm(wk latent), j * ratio)), blocks of 32, UE8M0 scale.
//   main entry = FP4(RoPE(latent, j * ratio)), blocks of 16, e4m3 scale.
#pragma once

#include "kernels/attention.h"
#include "kernels/weight_view.h"

namespace tensorfold {

inline constexpr int kQueryWidthMax = 8192;  // values of a query latent

inline constexpr int kWarmMax = 8;  // pieces of memory of one call

// Memory that the operations after this one read: a device may bring it nearer meanwhile.
struct WarmPiece {
  const void* data = nullptr;
  int64_t bytes = 0;
};

struct AttentionAppendParams {
  int rows = 0;
  int slices = 0;
  const AttentionSlice* slice = nullptr;  // [slices]
  const int32_t* row_slice = nullptr;     // [rows]
  int head_dim = 0;                       // D
  int rope_dim = 0;                       // last channels, rotated
  float norm_eps = 0;
  // Window part.
  const uint16_t* kv = nullptr;    // bf16 [rows, D] or nullptr
  const float* kv_norm = nullptr;  // [D]
  const float* rope = nullptr;     // [rows, rope_dim / 2, 2] at each row's position
  int ring_rows = 0;
  int64_t ring_offset = 0;     // bytes from a slice's rings to this layer's
  bool stage_only = false;     // the ring keeps its rows (drafted rows)
  uint16_t* staged = nullptr;  // out bf16 [history and own rows of all slices, D], or nullptr
  // Query part.
  uint16_t* qr = nullptr;         // in/out bf16 [rows, q_width] or nullptr
  const float* q_norm = nullptr;  // [q_width]
  int q_width = 0;                // a multiple of 32
  // Source part.
  const void* a = nullptr;               // fp32 (ratio 2) or bf16 (ratio 1) [rows, D] or nullptr
  const float* g = nullptr;              // fp32 [rows, D], ratio 2
  const float* latent_norm = nullptr;    // [D]
  const WeightView* index_wk = nullptr;  // [d, D]
  const float* index_norm = nullptr;     // [d]
  int index_dim = 0;                     // d
  const float* entry_rope = nullptr;  // [rows, rope_dim / 2, 2] at the completed entry's j * ratio
  EntryPool pool;
  int64_t pair_offset = 0;  // floats from a slice's pair_rings to this source's
  int warms = 0;            // hints, of the window part
  WarmPiece warm[kWarmMax];
  Workspace workspace;
};

int64_t attention_append_workspace_bytes(int rows, int head_dim, int index_dim);

inline OpCost attention_append_cost(const AttentionAppendParams& p) {
  OpCost c;
  if (p.kv != nullptr) c = {int64_t{p.rows} * p.head_dim * 5, int64_t{p.rows} * p.head_dim * 12};
  c.bytes += p.qr != nullptr ? int64_t{p.rows} * p.q_width * 4 : 0;
  if (p.a != nullptr) {
    const int64_t entries = p.rows / p.pool.ratio;
    c.bytes += int64_t{p.rows} * p.head_dim * 8 + p.index_wk->bytes();
    c.operations += entries * (2 * int64_t{p.index_dim} * p.head_dim + int64_t{20} * p.head_dim);
  }
  return c;
}

namespace cpu {
void attention_append(const AttentionAppendParams& p, Stream& stream);
}
}  // namespace tensorfold
