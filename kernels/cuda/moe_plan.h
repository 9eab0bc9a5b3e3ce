// How the MoE of generated rows is cut, and where its parts lie in the workspace. Pure functions of
// shapes (the cuts never of the row count), tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/exl3_layout.h"

namespace tensorfold::cuda {

inline constexpr int kMoeGateChunks = 2;  // of one thread block, per matrix and half
inline constexpr int kMoeDownChunks = 3;

constexpr int moe_padded(int n) { return (n + 127) / 128 * 128; }

struct MoeCut {
  int blocks = 0;        // input blocks of 128
  int cluster = 1;       // thread blocks that share them
  int cta_blocks = 0;    // of one thread block
  int chunk_blocks = 0;  // of one warp's chunk
};

// Gate and up: H inputs, split over a cluster of at most four.
constexpr MoeCut moe_gate_cut(int hidden) {
  MoeCut c;
  c.blocks = moe_padded(hidden) / 128;
  const int cluster = c.blocks >= 16 ? 4 : c.blocks >= 4 ? 2 : 1;
  c.cta_blocks = (c.blocks + cluster - 1) / cluster;
  c.cluster = (c.blocks + c.cta_blocks - 1) / c.cta_blocks;
  c.chunk_blocks = (c.cta_blocks + kMoeGateChunks - 1) / kMoeGateChunks;
  return c;
}

// Down: I inputs, all in one thread block.
constexpr MoeCut moe_down_cut(int intermediate) {
  MoeCut c;
  c.blocks = c.cta_blocks = moe_padded(intermediate) / 128;
  c.chunk_blocks = (c.blocks + kMoeDownChunks - 1) / kMoeDownChunks;
  return c;
}

// Rows of one expert that share a decode.
struct MoeEntry {
  int32_t expert = 0, first = 0, count = 0, unused = 0;  // slots [first, first + count)
};

// Byte offsets in the workspace. A pair is row * (topk + 1) + i; i = topk is the shared expert.
struct MoeDecodeLayout {
  int64_t entry_count = 0;  // int32
  int64_t entries = 0;      // MoeEntry [pairs]
  int64_t slots = 0;        // int32 [pairs] pair of each slot, by expert
  int64_t ready = 0;        // int32 [rows][H / 128] experts that are done
  int64_t xq = 0;           // bytes [pairs][gate, up][high, low][H]
  int64_t xs = 0;           // float2 [pairs][gate, up][H / 128]
  int64_t zq = 0;           // bytes [pairs][high, low][I]
  int64_t zs = 0;           // float2 [pairs][I / 128]
  int64_t ye = 0;           // fp32 [pairs][H]
  int64_t bytes = 0;
};

constexpr MoeDecodeLayout moe_decode_layout(int rows, int hidden, int intermediate, int topk) {
  const int64_t pairs = int64_t{rows} * (topk + 1);
  const int64_t h = moe_padded(hidden), n = moe_padded(intermediate);
  MoeDecodeLayout l;
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t here = at;
    at += (bytes + 255) / 256 * 256;
    return here;
  };
  l.entry_count = take(4);
  l.entries = take(pairs * 16);
  l.slots = take(pairs * 4);
  l.ready = take(rows * (h / 128) * 4);
  l.xq = take(pairs * 4 * h);
  l.xs = take(pairs * 2 * (h / 128) * 8);
  l.zq = take(pairs * 2 * n);
  l.zs = take(pairs * (n / 128) * 8);
  l.ye = take(pairs * h * 4);
  l.bytes = at;
  return l;
}

}  // namespace tensorfold::cuda
