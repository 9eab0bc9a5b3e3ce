// Attention over window rows and selected entries (kernels/attention_core.h).
#include "kernels/attention_core.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/simd.h"
#include "kernels/formats.h"

namespace tensorfold {
namespace {
constexpr int kBlock = kAttentionBlock;

int64_t lane_bytes(int heads, int d) {
  using cpu::Arena;
  const int64_t n = heads;
  return 2 * Arena::padded(n * d * 4) + Arena::padded(int64_t{kBlock} * d * 4) +
         2 * Arena::padded(n * 4);
}
}  // namespace

int64_t attention_core_workspace_bytes(int heads, int head_dim, int lanes) {
  return lanes * lane_bytes(heads, head_dim);
}

namespace cpu {

using simd::F16;

// Running state of one (row, heads) task.
struct CoreLane {
  float* q;     // [heads, D] rotated
  float* acc;   // [heads, D] numerator
  float* keys;  // [kBlock, D] of the current block, zero where there is none
  float* m;     // [heads] running maximum
  float* l;     // [heads] denominator
};

// Lane sums of 16 vectors t[0..15], each in sum_lanes' order, as one vector.
TF_INLINE F16 sum_lanes_of_16(const float (*t)[16]) {
  float s[16][16];
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 16; ++k) s[k][i] = t[i][k];
  F16 v[16];
  for (int k = 0; k < 16; ++k) v[k] = simd::load(s[k]);
  for (int width = 8; width > 0; width /= 2)
    for (int k = 0; k < width; ++k) v[k] += v[k + width];
  return v[0];
}

// Products of one query with 16 keys of the block, scaled.
TF_INLINE F16 score_16(const float* q, const float* keys, int d, float scale) {
  float partial[16][16];
  for (int k = 0; k < 16; k += 4) {
    const float* k0 = keys + int64_t{k} * d;
    F16 a0{}, a1{}, a2{}, a3{};
    for (int i = 0; i < d; i += 16) {
      const F16 qv = simd::load(q + i);
      a0 += qv * simd::load(k0 + i);
      a1 += qv * simd::load(k0 + d + i);
      a2 += qv * simd::load(k0 + 2 * d + i);
      a3 += qv * simd::load(k0 + 3 * d + i);
    }
    simd::store(partial[k], a0);
    simd::store(partial[k + 1], a1);
    simd::store(partial[k + 2], a2);
    simd::store(partial[k + 3], a3);
  }
  return sum_lanes_of_16(partial) * scale;
}

// acc = acc * alpha + sum_k p[k] * keys[k], k ascending.
TF_INLINE void accumulate(const float* p, const float* keys, int d, float alpha, float* acc) {
  for (int i = 0; i < d; i += 32) {
    F16 a0{}, a1{};
    for (int k = 0; k < kBlock; ++k) {
      a0 += simd::load(keys + int64_t{k} * d + i) * p[k];
      a1 += simd::load(keys + int64_t{k} * d + i + 16) * p[k];
    }
    simd::store(acc + i, simd::load(acc + i) * alpha + a0);
    simd::store(acc + i + 16, simd::load(acc + i + 16) * alpha + a1);
  }
}

// One block of keys for every head of the task; `present`: 0 or -infinity by slot.
TF_CLONES void core_block(const CoreLane& lane, int heads, int d, float scale,
                          const float* present) {
  for (int h = 0; h < heads; ++h) {
    F16 s[kBlock / 16];
    F16 largest = simd::splat(-INFINITY);
    for (int g = 0; g < kBlock / 16; ++g) {
      s[g] = score_16(lane.q + int64_t{h} * d, lane.keys + int64_t{g} * 16 * d, d, scale) +
             simd::load(present + g * 16);
      largest = simd::max(largest, s[g]);
    }
    const float block_max = simd::max_lanes(largest);
    const float m = block_max > lane.m[h] ? block_max : lane.m[h];
    const float alpha = simd::exp(lane.m[h] - m);
    F16 sum{};
    float p[kBlock];
    for (int g = 0; g < kBlock / 16; ++g) {
      const F16 e = simd::exp(s[g] - m);
      sum += e;
      simd::store(p + g * 16, simd::round_to_bf16(e));
    }
    lane.l[h] = lane.l[h] * alpha + simd::sum_lanes(sum);
    lane.m[h] = m;
    accumulate(p, lane.keys, d, alpha, lane.acc + int64_t{h} * d);
  }
}

namespace {

// Fills the block that begins at slot `first` with the row's keys. Returns how many there are.
int gather_block(const AttentionCoreParams& p, int64_t r, const AttentionSlice& s, int first,
                 int window_slots, int64_t window_staged, int entries, float* keys,
                 float* present) {
  const int d = p.head_dim;
  int found = 0;
  for (int i = 0; i < kBlock; ++i) {
    const int slot = first + i;
    float* key = keys + int64_t{i} * d;
    int64_t staged = -1, entry = -1;
    if (slot < window_slots)
      staged = p.window_list != nullptr ? p.window_list[r * p.window + slot] : window_staged + slot;
    else if (slot >= p.entry_slot && slot - p.entry_slot < entries)
      entry = p.selected[r * p.topk + (slot - p.entry_slot)];
    if (staged >= 0)
      widen_bf16(p.staged + staged * d, d, key);
    else if (entry >= 0)
      unpack_main_entry(p.pool.main(s.block_table, entry, main_entry_bytes(d)), d, key);
    else
      std::fill(key, key + d, 0.0f);
    present[i] = staged >= 0 || entry >= 0 ? 0.0f : -INFINITY;
    found += staged >= 0 || entry >= 0 ? 1 : 0;
  }
  return found;
}

void core_row(const AttentionCoreParams& p, int64_t r, int head0, int heads, const CoreLane& lane) {
  const AttentionSlice& s = p.slice[p.row_slice[r]];
  const int d = p.head_dim;
  const int64_t position = s.first_position + (r - s.first_row);
  int64_t window_staged = s.staged_first;  // staged row of slot 0
  int window_slots = s.history + s.rows;
  if (p.window_list != nullptr) {
    window_slots = p.window;
  } else if (!p.whole_slice) {
    const int64_t first = window_first(position, p.window, s.window_floor);
    window_staged = s.staged_first + s.history + (first - s.first_position);
    window_slots = static_cast<int>(position - first + 1);
  }
  const int entries = p.selected != nullptr ? p.selected_count[r] : 0;
  for (int h = 0; h < heads; ++h) {
    float* q = lane.q + int64_t{h} * d;
    widen_bf16(p.q + (r * p.heads + head0 + h) * d, d, q);
    if (p.rope != nullptr) rotate(q, d, p.rope_dim, p.rope + r * p.rope_dim, false);
    lane.m[h] = -1e30f;
    lane.l[h] = 0;
  }
  std::fill(lane.acc, lane.acc + int64_t{heads} * d, 0.0f);
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  const int slots = entries > 0 ? p.entry_slot + entries : window_slots;
  float present[kBlock];
  for (int first = 0; first < slots; first += kBlock)
    if (gather_block(p, r, s, first, window_slots, window_staged, entries, lane.keys, present) > 0)
      core_block(lane, heads, d, scale, present);
  for (int h = 0; h < heads; ++h) {
    float* o = lane.acc + int64_t{h} * d;
    const float denominator = lane.l[h] + simd::exp(p.sink[head0 + h] - lane.m[h]);
    for (int i = 0; i < d; ++i) o[i] = round_bf16(o[i] / denominator);
    if (p.rope != nullptr) rotate(o, d, p.rope_dim, p.rope + r * p.rope_dim, true);
    narrow_bf16(o, d, p.out + (r * p.heads + head0 + h) * d);
  }
}

}  // namespace

void attention_core(const AttentionCoreParams& p, Stream& stream) {
  CpuStream& cpu = cpu_stream(stream);
  TF_CHECK_EQ(p.head_dim % 32, 0);
  TF_CHECK_LE(cpu.lanes() * lane_bytes(p.heads, p.head_dim), p.workspace.bytes);
  // Few rows: heads are shared out too, each part gathering the keys again.
  const int parts = p.rows >= 2 * cpu.lanes() ? 1 : std::min(cpu.lanes(), p.heads);
  const int64_t work = int64_t{p.rows} * p.heads * p.head_dim * (p.window + p.topk) * 4;
  cpu.parallel_for(int64_t{p.rows} * parts, work, [&](int64_t task, int lane_index) {
    const auto part = static_cast<int>(task % parts);
    const int head0 = p.heads * part / parts, head1 = p.heads * (part + 1) / parts;
    Workspace own{p.workspace.data + lane_index * lane_bytes(p.heads, p.head_dim),
                  lane_bytes(p.heads, p.head_dim)};
    Arena arena(own);
    CoreLane lane;
    lane.q = arena.take<float>(int64_t{p.heads} * p.head_dim);
    lane.acc = arena.take<float>(int64_t{p.heads} * p.head_dim);
    lane.keys = arena.take<float>(int64_t{kBlock} * p.head_dim);
    lane.m = arena.take<float>(p.heads);
    lane.l = arena.take<float>(p.heads);
    core_row(p, task / parts, head0, head1 - head0, lane);
  });
}

}  // namespace cpu
}  // namespace tensorfold
