// How the MoE of generated rows is cut, and where its parts lie in the workspace. Pure functions of
// shapes (the cuts never of the row count), tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/exl3_layout.h"

namespace tensorfold::cuda {

constexpr int moe_padded(int n) { return (n + 127) / 128 * 128; }

// Blocks of 128 inputs are added within leaves, leaves within chunks, chunks; each in ascending
// order. So a chunk's leaves may be made by one thread block or by several.
struct MoeCut {
  int blocks = 0;
  int leaf_blocks = 0;
  int leaves = 0;
  int chunk_leaves = 0;
  int chunks = 0;
};

constexpr MoeCut moe_cut(int inputs, int leaf_blocks, int chunk_leaves) {
  MoeCut c;
  c.blocks = moe_padded(inputs) / 128;
  c.leaf_blocks = leaf_blocks;
  c.leaves = (c.blocks + leaf_blocks - 1) / leaf_blocks;
  c.chunk_leaves = chunk_leaves < c.leaves ? chunk_leaves : c.leaves;
  c.chunks = (c.leaves + c.chunk_leaves - 1) / c.chunk_leaves;
  return c;
}
inline constexpr int kMoeGateChunkLeaves = 2;
constexpr MoeCut moe_gate_cut(int hidden) { return moe_cut(hidden, 5, kMoeGateChunkLeaves); }
constexpr MoeCut moe_down_cut(int intermediate) { return moe_cut(intermediate, 3, 1 << 20); }

// Slots of calls that are so few that leaves are dealt out one by one.
inline constexpr int kMoeFineSlots = 512;

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

// Byte offsets in the workspace. A pair is row * (topk + 1) + i; i = topk is the shared expert. A
// slot is a pair's place by expert.
struct MoeDecodeLayout {
  int64_t entry_count = 0;  // int32: entries, slots, whether parts are of leaves, large entries
  int64_t entries = 0;      // MoeEntry [pairs]
  int64_t slots = 0;        // int32 [pairs] pair of each slot
  int64_t slot_entry = 0;   // int2 [pairs] entry of each slot, expert
  int64_t z_done = 0;       // int32 [pairs] blocks of an entry's rows for w2
  int64_t leaf_done = 0;    // int32 [fine slots][H / 128] leaves of an entry's columns
  int64_t row_done = 0;     // int32 [rows][H / 128] experts that are done
  int64_t counters = 0;     // int32 of the three above, which lie side by side
  int64_t parts = 0;        // fp32 [slots][gate, up][chunks][I], or [fine slots] .. [leaves] ..
  int64_t down_parts = 0;   // fp32 [fine slots][leaves][H]
  int64_t zq = 0;           // bytes [slots][high, low][I]; prompt rows: fp16
  int64_t zs = 0;           // float2 [slots][I / 128]: scale, shift
  int64_t ye = 0;           // fp32 [pairs][H]: the experts' outputs
  int64_t xq = 0;           // prompt rows only: rotated rows
  int64_t bytes = 0;
};

constexpr MoeDecodeLayout moe_decode_layout(int rows, int hidden, int intermediate, int topk) {
  const int64_t pairs = int64_t{rows} * (topk + 1);
  const int64_t fine = pairs < kMoeFineSlots ? pairs : kMoeFineSlots;
  const int64_t h = moe_padded(hidden), n = moe_padded(intermediate);
  const MoeCut gate = moe_gate_cut(hidden);
  const int64_t chunks = pairs * gate.chunks, leaves = fine * gate.leaves;
  MoeDecodeLayout l;
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t here = at;
    at += (bytes + 255) / 256 * 256;
    return here;
  };
  l.entry_count = take(16);
  l.entries = take(pairs * 16);
  l.slots = take(pairs * 4);
  l.slot_entry = take(pairs * 8);
  l.z_done = take(pairs * 4);
  l.leaf_done = take(fine * (h / 128) * 4);
  l.row_done = take(rows * (h / 128) * 4);
  l.counters = (at - l.z_done) / 4;
  l.parts = take((chunks > leaves ? chunks : leaves) * 2 * n * 4);
  l.down_parts = take(fine * moe_down_cut(intermediate).leaves * h * 4);
  l.zq = take(pairs * 2 * n);
  l.zs = take(pairs * (n / 128) * 8);
  l.ye = take(pairs * h * 4);
  l.bytes = at;
  return l;
}

}  // namespace tensorfold::cuda
