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
  return 3 * Arena::padded(n * d * 4) + Arena::padded(int64_t{kBlock} * d * 8) +
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
  double* q;     // [heads, D] rotated
  float* acc;    // [heads, D] numerator
  double* keys;  // [kBlock, D] of the current block, zero where there is none
  float* m;      // [heads] running maximum
  float* l;      // [heads] denominator
};

typedef double D8 __attribute__((vector_size(64)));
typedef double D8u __attribute__((vector_size(64), aligned(8), may_alias));
TF_INLINE D8 load8(const double* p) { return *reinterpret_cast<const D8u*>(p); }

// Lane sums of 8 vectors (halves are added until one is left).
TF_INLINE void sum_lanes_of_8(const double (*t)[8], float scale, float* out) {
  D8 v[8];
  for (int k = 0; k < 8; ++k)
    v[k] = D8{t[0][k], t[1][k], t[2][k], t[3][k], t[4][k], t[5][k], t[6][k], t[7][k]};
  for (int width = 4; width > 0; width /= 2)
    for (int k = 0; k < width; ++k) v[k] += v[k + width];
  for (int i = 0; i < 8; ++i) out[i] = static_cast<float>(v[0][i]) * scale;
}

// Products of one query with 8 keys of the block, rounded to fp32, then scaled.
TF_INLINE void score_8(const double* q, const double* keys, int d, float scale, float* out) {
  D8 acc[8] = {};
  for (int i = 0; i < d; i += 8) {
    const D8 qv = load8(q + i);
    for (int k = 0; k < 8; ++k) acc[k] += qv * load8(keys + int64_t{k} * d + i);
  }
  double partial[8][8];
  for (int k = 0; k < 8; ++k) *reinterpret_cast<D8u*>(partial[k]) = acc[k];
  sum_lanes_of_8(partial, scale, out);
}

// acc = acc * alpha + sum_k p[k] * keys[k], the sum in fp64, k ascending, rounded to fp32.
TF_INLINE void accumulate(const double* p, const double* keys, int d, float alpha, float* acc) {
  for (int i = 0; i < d; i += 32) {
    D8 sum[4] = {};
    for (int k = 0; k < kBlock; ++k)
      for (int j = 0; j < 4; ++j) sum[j] += load8(keys + int64_t{k} * d + i + j * 8) * p[k];
    for (int j = 0; j < 32; ++j)
      acc[i + j] = acc[i + j] * alpha + static_cast<float>(sum[j / 8][j % 8]);
  }
}

// Sum of a block's P in fp32: 32 running sums, those 8 apart ascending, then the 8 ascending.
TF_INLINE float sum_block(const float* p) {
  float sum = 0;
  for (int i = 0; i < 8; ++i) {
    const float column = ((p[i] + p[32 + i]) + (p[8 + i] + p[40 + i]) + (p[16 + i] + p[48 + i])) +
                         (p[24 + i] + p[56 + i]);
    sum = i == 0 ? column : sum + column;
  }
  return sum;
}

// One block of keys for every head of the task; `present`: 0 or -infinity by slot.
TF_CLONES void core_block(const CoreLane& lane, int heads, int d, float scale,
                          const float* present) {
  for (int h = 0; h < heads; ++h) {
    float s[kBlock];
    for (int k = 0; k < kBlock; k += 8)
      score_8(lane.q + int64_t{h} * d, lane.keys + int64_t{k} * d, d, scale, s + k);
    F16 largest = simd::splat(-INFINITY);
    for (int g = 0; g < kBlock; g += 16) {
      simd::store(s + g, simd::load(s + g) + simd::load(present + g));
      largest = simd::max(largest, simd::load(s + g));
    }
    const float block_max = simd::max_lanes(largest);
    const float m = block_max > lane.m[h] ? block_max : lane.m[h];
    const float alpha = simd::exp(lane.m[h] - m);
    double p[kBlock];
    for (int g = 0; g < kBlock; g += 16) {
      const F16 e = simd::exp(simd::load(s + g) - m);
      simd::store(s + g, e);
      const F16 rounded = simd::round_to_bf16(e);
      for (int i = 0; i < 16; ++i) p[g + i] = static_cast<double>(rounded[i]);
    }
    lane.l[h] = lane.l[h] * alpha + sum_block(s);
    lane.m[h] = m;
    accumulate(p, lane.keys, d, alpha, lane.acc + int64_t{h} * d);
  }
}

namespace {

// Fills the block that begins at slot `first` with the row's keys. Returns how many there are.
int gather_block(const AttentionCoreParams& p, int64_t r, const AttentionSlice& s, int first,
                 int window_slots, int64_t window_staged, int entries, double* keys,
                 float* present) {
  const int d = p.head_dim;
  int found = 0;
  for (int i = 0; i < kBlock; ++i) {
    const int slot = first + i;
    double* row = keys + int64_t{i} * d;
    float* key = narrow_half(row, d);
    int64_t staged = -1, entry = -1;
    if (slot < window_slots)
      staged = p.window_list != nullptr ? p.window_list[r * p.window + slot] : window_staged + slot;
    else if (slot - window_slots < entries)
      entry = p.selected[r * p.topk + (slot - window_slots)];
    if (staged >= 0)
      widen_bf16(p.staged + staged * d, d, key);
    else if (entry >= 0)
      unpack_main_entry(p.pool.main(s.block_table, entry, main_entry_bytes(d)), d, key);
    else
      std::fill(key, key + d, 0.0f);
    widen_half(row, d);
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
    float* q = narrow_half(lane.q + int64_t{h} * d, d);
    widen_bf16(p.q + (r * p.heads + head0 + h) * d, d, q);
    if (p.rope != nullptr) rotate(q, d, p.rope_dim, p.rope + r * p.rope_dim, false);
    widen_half(lane.q + int64_t{h} * d, d);
    lane.m[h] = -1e30f;
    lane.l[h] = 0;
  }
  std::fill(lane.acc, lane.acc + int64_t{heads} * d, 0.0f);
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  const int slots = window_slots + entries;
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
    lane.q = arena.take<double>(int64_t{p.heads} * p.head_dim);
    lane.acc = arena.take<float>(int64_t{p.heads} * p.head_dim);
    lane.keys = arena.take<double>(int64_t{kBlock} * p.head_dim);
    lane.m = arena.take<float>(p.heads);
    lane.l = arena.take<float>(p.heads);
    core_row(p, task / parts, head0, head1 - head0, lane);
  });
}

}  // namespace cpu
}  // namespace tensorfold
