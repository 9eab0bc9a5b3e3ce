// How the MoE of generated rows is cut, and where its parts lie in the
// workspace. Pure functions of shapes (the cuts never of the row count), tested
// without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/exl3_layout.h"

namespace tensorfold::cuda {

inline constexpr int kMoeGateChunksMax = 8;  // parts of the inputs of gate and up
inline constexpr int kMoeDownChunksMax = 1;

constexpr int moe_padded(int n) { return (n + 127) / 128 * 128; }

// A unit is 64 outputs by one chunk of the inputs; chunks are added in
// ascending order.
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

// Rows of an expert that a prompt tile should hold: the mean and three
// deviations of a uniform choice. It decides how often a trellis is decoded,
// never the order of a sum.
constexpr int prefill_tile_rows(int rows, int topk, int experts) {
  const int64_t mean = int64_t{rows} * topk / (experts > 0 ? experts : 1);
  int64_t deviation = 0;
  while ((deviation + 1) * (deviation + 1) <= mean) ++deviation;
  const int64_t wanted = mean + 3 * deviation;
  return wanted > 160 ? 160 : static_cast<int>(wanted);
}

// Rows of one expert that share a decode.
struct MoeEntry {
  int32_t expert = 0, first = 0, count = 0,
          unused = 0;  // slots [first, first + count)
};

// Byte offsets in the workspace. A pair is row * (topk + 1) + i; i = topk is
// the shared expert.
struct MoeDecodeLayout {
  int64_t entry_count = 0;  // int32: entries, slots
  int64_t entries = 0;      // MoeEntry [pairs]
  int64_t slots = 0;        // int32 [pairs] pair of each slot, by expert
  int64_t slot_entry = 0;   // int32 [pairs] its entry
  int64_t z_done = 0;       // int32 [pairs] blocks of an entry's rows for w2
  int64_t row_done = 0;     // int32 [rows][H / 128] experts that are done
  int64_t counters = 0;     // int32 of the two above, which lie side by side
  int64_t parts = 0;        // fp32 [pairs][gate, up][chunks][I]
  int64_t zq = 0;           // bytes [pairs][high, low][I]; prompt rows: fp16
  int64_t zs = 0;           // float2 [pairs][I / 128]: scale, shift
  int64_t ye = 0;           // fp32 [pairs][H]: down's sums, then the experts' outputs
  int64_t xq = 0;           // prompt rows only: rotated rows
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
  l.entry_count = take(8);
  l.entries = take(pairs * 16);
  l.slots = take(pairs * 4);
  l.slot_entry = take(pairs * 4);
  l.z_done = take(pairs * 4);
  l.row_done = take(rows * (h / 128) * 4);
  l.counters = (at - l.z_done) / 4;
  l.parts = take(pairs * 2 * moe_gate_cut(hidden).chunks * n * 4);
  l.zq = take(pairs * 2 * n);
  l.zs = take(pairs * (n / 128) * 8);
  l.ye = take(pairs * h * 4);
  l.bytes = at;
  return l;
}

}  // namespace tensorfold::cuda
