// How the MoE of generated rows is cut, and where its parts lie in the workspace. Pure functions of
// shapes (the cuts never of the row count), tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/exl3_layout.h"

namespace tensorfold::cuda {

inline constexpr int kMoeGateChunksMax = 4;  // parts of the inputs of gate and up
inline constexpr int kMoeDownChunksMax = 3;

constexpr int moe_padded(int n) { return (n + 127) / 128 * 128; }

// Chunks of the inputs are summed by themselves, then added in ascending order. A warp's unit is 64
// outputs by one chunk or all.
struct MoeCut {
  int blocks = 0;        // input blocks of 128
  int chunk_blocks = 0;  // of a chunk
  int chunks = 0;
};

constexpr MoeCut moe_cut(int inputs, int chunks_max) {
  MoeCut c;
  c.blocks = moe_padded(inputs) / 128;
  c.chunk_blocks = (c.blocks + chunks_max - 1) / chunks_max;
  c.chunks = (c.blocks + c.chunk_blocks - 1) / c.chunk_blocks;
  return c;
}
constexpr MoeCut moe_gate_cut(int hidden) { return moe_cut(hidden, kMoeGateChunksMax); }
constexpr MoeCut moe_down_cut(int intermediate) { return moe_cut(intermediate, kMoeDownChunksMax); }

// Into how many units down's inputs are cut: by chunks where the experts of a step are few, so that
// every warp of the GPU gets one; not at all where there are many.
constexpr int moe_down_parts(const MoeCut& c, int rows) {
  constexpr int kFewRows = 8;
  return rows <= kFewRows ? c.chunks : 1;
}

// Rows of an expert that a prompt tile should hold: the mean and three deviations of a uniform
// choice. It decides how often a trellis is decoded, never the order of a sum.
constexpr int prefill_tile_rows(int rows, int topk, int experts) {
  const int64_t mean = int64_t{rows} * topk / (experts > 0 ? experts : 1);
  int64_t deviation = 0;
  while ((deviation + 1) * (deviation + 1) <= mean) ++deviation;
  const int64_t wanted = mean + 3 * deviation;
  return wanted > 160 ? 160 : static_cast<int>(wanted);
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
  int64_t tickets = 0;      // int32: next unit of gate and up, of down
  int64_t gate_done = 0;    // int32 [pairs][I / 128] units of an entry's output block
  int64_t down_done = 0;    // int32 [pairs][H / 128] likewise
  int64_t row_done = 0;     // int32 [rows][H / 128] experts that are done
  int64_t counters = 0;     // int32 of the four above, which lie side by side
  int64_t xq = 0;           // bytes [pairs][gate, up][high, low][H]
  int64_t xs = 0;           // float2 [pairs][gate, up][H / 128]
  int64_t zq = 0;           // bytes [pairs][high, low][I]
  int64_t zs = 0;           // float2 [pairs][I / 128]
  int64_t parts = 0;        // fp32 [pairs][gate, up][chunks][I], then [pairs][chunks][H]
  int64_t ye = 0;           // fp32 [pairs][H]
  int64_t bytes = 0;
};

constexpr MoeDecodeLayout moe_decode_layout(int rows, int hidden, int intermediate, int topk) {
  const int64_t pairs = int64_t{rows} * (topk + 1);
  const int64_t h = moe_padded(hidden), n = moe_padded(intermediate);
  const int64_t gate_parts = 2 * moe_gate_cut(hidden).chunks * n;
  const int64_t down_parts = moe_down_cut(intermediate).chunks * h;
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
  l.tickets = take(8);
  l.gate_done = take(pairs * (n / 128) * 4);
  l.down_done = take(pairs * (h / 128) * 4);
  l.row_done = take(rows * (h / 128) * 4);
  l.counters = (at - l.tickets) / 4;
  l.xq = take(pairs * 4 * h);
  l.xs = take(pairs * 2 * (h / 128) * 8);
  l.zq = take(pairs * 2 * n);
  l.zs = take(pairs * (n / 128) * 8);
  l.parts = take(pairs * (gate_parts > down_parts ? gate_parts : down_parts) * 4);
  l.ye = take(pairs * h * 4);
  l.bytes = at;
  return l;
}

}  // namespace tensorfold::cuda
