// Choice of global entries (kernels/index_select.h).
//
// Rows that need scores are taken in groups of one slice, so that a chunk of keys is unpacked once
// for the group; chunks run in parallel, then the choice of each row.
#include "kernels/index_select.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "kernels/cpu/order.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/simd.h"
#include "kernels/formats.h"

namespace tensorfold {
namespace {

constexpr int kIndexGroupRows = 16;  // rows scored together
constexpr int kIndexChunk = 64;      // entries scored together

struct Sizes {
  int64_t query, weight, scores, keys, ranks;
};
Sizes sizes(int heads, int dim, int64_t entries_max, int lanes) {
  using cpu::Arena;
  const int64_t padded = (entries_max + kIndexChunk - 1) / kIndexChunk * kIndexChunk;
  Sizes s;
  s.query = Arena::padded(int64_t{kIndexGroupRows} * heads * dim * 4);
  s.weight = Arena::padded(int64_t{kIndexGroupRows} * heads * 4);
  s.scores = Arena::padded(int64_t{kIndexGroupRows} * padded * 4);
  s.keys = lanes * Arena::padded(int64_t{kIndexChunk} * dim * 4);
  s.ranks = lanes * Arena::padded(padded * 8);
  return s;
}

}  // namespace

int64_t index_select_workspace_bytes(int heads, int dim, int64_t entries_max, int lanes) {
  const Sizes s = sizes(heads, dim, entries_max, lanes);
  return s.query + s.weight + s.scores + s.keys + s.ranks;
}

namespace cpu {

using simd::F16;

// Scores of 64 keys (transposed: [dim][64]) for one row.
TF_CLONES void score_chunk(const float* q, const float* w, const float* keys, int heads, int dim,
                           bool bf16_scores, float* out) {
  F16 sum[4] = {};
  for (int h = 0; h < heads; ++h) {
    F16 acc[4] = {};
    for (int c = 0; c < dim; ++c)
      for (int g = 0; g < 4; ++g)
        acc[g] += simd::load(keys + c * kIndexChunk + g * 16) * q[h * dim + c];
    for (int g = 0; g < 4; ++g) {
      F16 s = bf16_scores ? simd::round_to_bf16(acc[g]) : acc[g];
      s = s < 0.0f ? F16{} : s;
      s = s * w[h];
      sum[g] += bf16_scores ? simd::round_to_bf16(s) : s;
    }
  }
  for (int g = 0; g < 4; ++g)
    simd::store(out + g * 16, bf16_scores ? simd::round_to_bf16(sum[g]) : sum[g]);
}

namespace {

void select_all(const IndexSelectParams& p, int64_t r, int64_t visible) {
  for (int i = 0; i < p.topk; ++i) p.selected[r * p.topk + i] = i < visible ? i : -1;
  p.selected_count[r] = static_cast<int32_t>(visible);
}

void all_blocks(const IndexSelectParams& p, int64_t r, int64_t visible) {
  const int64_t blocks = (visible + p.candidate_block_size - 1) / p.candidate_block_size;
  for (int64_t b = 0; b < blocks; ++b)
    p.candidates[r * p.candidate_blocks + b] = static_cast<int32_t>(b);
  p.candidate_count[r] = static_cast<int32_t>(blocks);
}

// Whether row r can be settled without scores; settles what can be.
bool settle(const IndexSelectParams& p, int64_t r, int64_t visible) {
  bool settled = true;
  if (visible <= p.topk)
    select_all(p, r, visible);
  else
    settled = false;
  if (p.builds_candidates) {
    if (visible <= int64_t{p.candidate_blocks} * p.candidate_block_size)
      all_blocks(p, r, visible);
    else
      settled = false;
  }
  return settled && p.scores == nullptr;
}

struct Group {
  int64_t first = 0;  // row
  int rows = 0;
  const AttentionSlice* slice = nullptr;
  int64_t visible[kIndexGroupRows] = {};
  float* q = nullptr;       // [rows, heads, d]
  float* w = nullptr;       // [rows, heads]
  float* scores = nullptr;  // [rows, stride]
  int64_t stride = 0;
  float* keys = nullptr;  // per lane [d][64]
  int64_t keys_stride = 0;
  uint64_t* ranks = nullptr;  // per lane [stride]
};

void prepare_query(const IndexSelectParams& p, Group& g, int i) {
  const int64_t r = g.first + i;
  for (int h = 0; h < p.heads; ++h) {
    float* q = g.q + (int64_t{i} * p.heads + h) * p.dim;
    widen_bf16(p.iq + (r * p.heads + h) * p.dim, p.dim, q);
    rotate(q, p.dim, p.rope_dim, p.rope + r * p.rope_dim, false);
    fake_quantise_fp4_ue8m0(q, p.dim, q);
    g.w[i * p.heads + h] = round_bf16(bf16_to_f32(p.iw[r * p.heads + h]) * p.weight_scale);
  }
}

void score_entries(const IndexSelectParams& p, const Group& g, int64_t chunk, int lane) {
  const int64_t first = chunk * kIndexChunk;
  float* keys = g.keys + lane * g.keys_stride;
  const int64_t end = std::min<int64_t>(first + kIndexChunk, g.visible[g.rows - 1]);
  float key[kRowWidthMax];
  for (int64_t j = first; j < first + kIndexChunk; ++j) {
    if (j < end)
      unpack_index_key(p.pool.index(g.slice->block_table, j, index_key_bytes(p.dim)), p.dim, key);
    else
      std::fill(key, key + p.dim, 0.0f);
    for (int c = 0; c < p.dim; ++c) keys[c * kIndexChunk + (j - first)] = key[c];
  }
  for (int i = 0; i < g.rows; ++i)
    if (first < g.visible[i])
      score_chunk(g.q + int64_t{i} * p.heads * p.dim, g.w + i * p.heads, keys, p.heads, p.dim,
                  p.bf16_scores, g.scores + i * g.stride + first);
}

// The k best of the row's scores; entries outside the candidate blocks rank last.
void select_best(const IndexSelectParams& p, int64_t r, int64_t visible, const float* scores,
                 uint64_t* ranks) {
  for (int64_t j = 0; j < visible; ++j) {
    const auto index = static_cast<uint32_t>(j);
    ranks[j] =
        p.uses_candidates ? descending_rank(-INFINITY, index) : descending_rank(scores[j], index);
  }
  if (p.uses_candidates) {
    const int32_t* blocks = p.candidates + r * p.candidate_blocks;
    for (int b = 0; b < p.candidate_count[r]; ++b) {
      const int64_t j0 = int64_t{blocks[b]} * p.candidate_block_size;
      const int64_t j1 = std::min<int64_t>(j0 + p.candidate_block_size, visible);
      for (int64_t j = j0; j < j1; ++j)
        ranks[j] = descending_rank(scores[j], static_cast<uint32_t>(j));
    }
  }
  const int64_t k = std::min<int64_t>(p.topk, visible);
  if (k < visible) std::nth_element(ranks, ranks + k, ranks + visible, std::greater<>());
  int32_t* out = p.selected + r * p.topk;
  for (int64_t i = 0; i < k; ++i) out[i] = static_cast<int32_t>(rank_index(ranks[i]));
  std::sort(out, out + k);
  std::fill(out + k, out + p.topk, -1);
  p.selected_count[r] = static_cast<int32_t>(k);
}

void finish_row(const IndexSelectParams& p, const Group& g, int i, int lane) {
  const int64_t r = g.first + i;
  const int64_t visible = g.visible[i];
  const float* scores = g.scores + i * g.stride;
  if (p.scores != nullptr) std::copy(scores, scores + visible, p.scores + r * p.scores_stride);
  if (p.builds_candidates)
    p.candidate_count[r] =
        select_candidate_blocks(scores, visible, p.candidate_block_size, p.candidate_blocks,
                                p.candidates + r * p.candidate_blocks);
  select_best(p, r, visible, scores, g.ranks + lane * g.stride);
}

void run_group(const IndexSelectParams& p, Group& g, CpuStream& cpu) {
  for (int i = 0; i < g.rows; ++i) prepare_query(p, g, i);
  const int64_t entries = g.visible[g.rows - 1];  // the last row sees most
  const int64_t chunks = (entries + kIndexChunk - 1) / kIndexChunk;
  const int64_t work = g.rows * entries * p.heads * p.dim * 2 + entries * p.dim * 4;
  cpu.parallel_for(chunks, work, [&](int64_t c, int lane) { score_entries(p, g, c, lane); });
  cpu.parallel_for(g.rows, g.rows * entries * 10,
                   [&](int64_t i, int lane) { finish_row(p, g, static_cast<int>(i), lane); });
}

}  // namespace

void index_select(const IndexSelectParams& p, Stream& stream) {
  CpuStream& cpu = cpu_stream(stream);
  TF_CHECK_LE(p.dim, kRowWidthMax);
  const Sizes s = sizes(p.heads, p.dim, p.entries_max, cpu.lanes());
  TF_CHECK_LE(s.query + s.weight + s.scores + s.keys + s.ranks, p.workspace.bytes);
  Group g;
  std::byte* at = p.workspace.data;
  g.q = reinterpret_cast<float*>(at);
  g.w = reinterpret_cast<float*>(at += s.query);
  g.scores = reinterpret_cast<float*>(at += s.weight);
  g.keys = reinterpret_cast<float*>(at += s.scores);
  g.ranks = reinterpret_cast<uint64_t*>(at += s.keys);
  g.keys_stride = int64_t{kIndexChunk} * p.dim;
  g.stride = (p.entries_max + kIndexChunk - 1) / kIndexChunk * kIndexChunk;
  for (int64_t r = 0; r < p.rows;) {
    g.slice = &p.slice[p.row_slice[r]];
    g.first = r;
    g.rows = 0;
    for (; r < p.rows && g.rows < kIndexGroupRows && &p.slice[p.row_slice[r]] == g.slice; ++r) {
      const int64_t position = g.slice->first_position + (r - g.slice->first_row);
      const int64_t visible = visible_entries(position, p.pool.ratio);
      TF_CHECK_LE(visible, p.entries_max);
      if (!settle(p, r, visible)) {
        g.visible[g.rows++] = visible;
      } else if (g.rows == 0) {
        g.first = r + 1;
      } else {
        ++r;  // cannot happen while visibility grows along a slice; ends the group all the same
        break;
      }
    }
    if (g.rows > 0) run_group(p, g, cpu);
  }
}

}  // namespace cpu

int select_candidate_blocks(const float* scores, int64_t visible, int block_size, int blocks_max,
                            int32_t* out) {
  if (visible == 0) return 0;
  const int64_t blocks = (visible + block_size - 1) / block_size;
  const int64_t pinned = (visible - 1) / block_size;
  // `out` is a heap of the best so far, worst at the front, ordered by rank of the block's maximum.
  const auto rank = [&](int32_t b) {
    if (b == pinned) return cpu::descending_rank(INFINITY, static_cast<uint32_t>(b));
    float m = -INFINITY;
    const int64_t end = std::min<int64_t>(int64_t{b + 1} * block_size, visible);
    for (int64_t j = int64_t{b} * block_size; j < end; ++j) m = std::max(m, scores[j]);
    return cpu::descending_rank(m, static_cast<uint32_t>(b));
  };
  const auto better = [&](int32_t a, int32_t b) { return rank(a) > rank(b); };
  int count = 0;
  const uint64_t nothing = cpu::descending_rank(-INFINITY, 0);
  for (int64_t b = 0; b < blocks; ++b) {
    const auto block = static_cast<int32_t>(b);
    if (rank(block) <= nothing) continue;  // nothing in it can be chosen
    if (count < blocks_max) {
      out[count++] = block;
      std::push_heap(out, out + count, better);
    } else if (rank(block) > rank(out[0])) {
      std::pop_heap(out, out + count, better);
      out[count - 1] = block;
      std::push_heap(out, out + count, better);
    }
  }
  std::sort(out, out + count);
  return count;
}

}  // namespace tensorfold
