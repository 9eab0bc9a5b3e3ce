// New rows enter the cache (kernels/attention_append.h), in the header's order.
#include "kernels/attention_append.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/simd.h"
#include "kernels/formats.h"

namespace tensorfold {

int64_t attention_append_workspace_bytes(int rows, int head_dim, int index_dim) {
  const int64_t n = rows;
  return 3 * cpu::Arena::padded(n * head_dim * 4) + cpu::Arena::padded(n * index_dim * 4) +
         cpu::Arena::padded(n * 4);
}

namespace cpu {

using simd::F16;

// Softmax over the two positions of a pair, per channel, and the weighted sum, rounded to bf16.
TF_CLONES void pool_pair(const float* a0, const float* g0, const float* a1, const float* g1, int d,
                         float* pooled) {
  for (int i = 0; i < d; i += 16) {
    const F16 x0 = simd::load(g0 + i), x1 = simd::load(g1 + i);
    const F16 m = simd::max(x0, x1);
    const F16 e0 = simd::exp(x0 - m), e1 = simd::exp(x1 - m);
    const F16 sum = e0 + e1;
    const F16 y = simd::load(a0 + i) * (e0 / sum) + simd::load(a1 + i) * (e1 / sum);
    simd::store(pooled + i, simd::round_to_bf16(y));
  }
}

namespace {

// Query part.
void norm_queries(const AttentionAppendParams& p, CpuStream& cpu) {
  TF_CHECK_LE(p.q_width, kQueryWidthMax);
  cpu.parallel_for(p.rows, int64_t{p.rows} * p.q_width * 6, [&](int64_t r, int) {
    float row[kQueryWidthMax];
    uint16_t* x = p.qr + r * p.q_width;
    widen_bf16(x, p.q_width, row);
    rms_norm(row, p.q_norm, p.q_width, p.norm_eps, row);
    narrow_bf16(row, p.q_width, x);
  });
}

// Window part, 1: rows of the slice's past come out of the ring.
void stage_history(const AttentionAppendParams& p, CpuStream& cpu) {
  int64_t total = 0;
  for (int s = 0; s < p.slices; ++s) total += p.slice[s].history;
  if (total == 0) return;
  const int64_t row_bytes = window_row_bytes(p.head_dim);
  cpu.parallel_for(p.slices, total * p.head_dim * 4, [&](int64_t i, int) {
    const AttentionSlice& s = p.slice[i];
    float row[kRowWidthMax];
    for (int h = 0; h < s.history; ++h) {
      const int64_t position = s.first_position - s.history + h;
      unpack_window_row(s.rings + p.ring_offset + position % p.ring_rows * row_bytes, p.head_dim,
                        row);
      narrow_bf16(row, p.head_dim, p.staged + (s.staged_first + h) * int64_t{p.head_dim});
    }
  });
}

// Window part, 2: the slice's own rows.
void append_window(const AttentionAppendParams& p, CpuStream& cpu) {
  const int d = p.head_dim;
  const int64_t row_bytes = window_row_bytes(d);
  cpu.parallel_for(p.rows, int64_t{p.rows} * d * 30, [&](int64_t r, int) {
    const AttentionSlice& s = p.slice[p.row_slice[r]];
    const auto i = static_cast<int>(r - s.first_row);
    float row[kRowWidthMax];
    uint8_t packed[kRowWidthMax + kRowWidthMax / kFp8Block];
    widen_bf16(p.kv + r * d, d, row);
    rms_norm(row, p.kv_norm, d, p.norm_eps, row);
    rotate(row, d, p.rope_dim, p.rope + r * p.rope_dim, false);
    pack_window_row(row, d, packed);
    if (p.staged != nullptr) {
      unpack_window_row(packed, d, row);
      narrow_bf16(row, d, p.staged + (s.staged_first + s.history + i) * int64_t{d});
    }
    if (!p.stage_only &&
        i >= s.rows - p.ring_rows) {  // older ones would be overwritten by this slice itself
      const int64_t at = (s.first_position + i) % p.ring_rows;
      std::memcpy(s.rings + p.ring_offset + at * row_bytes, packed, static_cast<size_t>(row_bytes));
    }
  });
}

// Source part: the latent of the entry that row r completes, as fp32 holding bf16.
void entry_latent(const AttentionAppendParams& p, int64_t r, float* latent) {
  const AttentionSlice& s = p.slice[p.row_slice[r]];
  const int d = p.head_dim;
  if (p.pool.ratio == 1) {
    widen_bf16(static_cast<const uint16_t*>(p.a) + r * d, d, latent);
  } else {
    const auto* a = static_cast<const float*>(p.a);
    const int64_t before = s.first_position + (r - s.first_row) - 1;
    const float* ring = s.pair_rings + p.pair_offset + before % kPairRingRows * 2 * d;
    const float* a0 = r > s.first_row ? a + (r - 1) * d : ring;
    const float* g0 = r > s.first_row ? p.g + (r - 1) * d : ring + d;
    pool_pair(a0, g0, a + r * d, p.g + r * d, d, latent);
  }
  rms_norm(latent, p.latent_norm, d, p.norm_eps, latent);
}

void keep_pair_inputs(const AttentionAppendParams& p, CpuStream& cpu) {
  const int d = p.head_dim;
  const auto* a = static_cast<const float*>(p.a);
  cpu.parallel_for(p.slices, 0, [&](int64_t i, int) {
    const AttentionSlice& s = p.slice[i];
    for (int k = std::max(0, s.rows - kPairRingRows); k < s.rows; ++k) {
      float* row = s.pair_rings + p.pair_offset + (s.first_position + k) % kPairRingRows * 2 * d;
      const int64_t r = s.first_row + k;
      std::memcpy(row, a + r * d, static_cast<size_t>(d) * 4);
      std::memcpy(row + d, p.g + r * d, static_cast<size_t>(d) * 4);
    }
  });
}

void append_entries(const AttentionAppendParams& p, CpuStream& cpu) {
  const int d = p.head_dim, di = p.index_dim, ratio = p.pool.ratio;
  Arena arena(p.workspace);
  int32_t* entry_row = arena.take<int32_t>(p.rows);
  int entries = 0;
  for (int s = 0; s < p.slices; ++s)
    for (int i = 0; i < p.slice[s].rows; ++i)
      if ((p.slice[s].first_position + i + 1) % ratio == 0)
        entry_row[entries++] = p.slice[s].first_row + i;
  float* latent = arena.take<float>(int64_t{entries} * d);
  double* input = arena.take<double>(int64_t{entries} * d);
  float* key = arena.take<float>(int64_t{entries} * di);
  // Latents first: pairs may need ring rows that keep_pair_inputs overwrites.
  cpu.parallel_for(entries, int64_t{entries} * d * 40, [&](int64_t e, int) {
    entry_latent(p, entry_row[e], latent + e * d);
    float* values = narrow_half(input + e * d, d);
    if (p.index_wk->quantise_input)
      fake_quantise_fp8(latent + e * d, d, values);
    else
      std::copy_n(latent + e * d, d, values);
    widen_half(input + e * d, d);
  });
  if (ratio == 2) keep_pair_inputs(p, cpu);
  DenseJob job;
  job.w = p.index_wk;
  job.x = input;
  job.x_stride = d;
  job.rows = entries;
  job.y = key;
  job.y_stride = di;
  dense(&job, 1, cpu);
  cpu.parallel_for(entries, int64_t{entries} * (d + di) * 30, [&](int64_t e, int) {
    const int64_t r = entry_row[e];
    const AttentionSlice& s = p.slice[p.row_slice[r]];
    const int64_t j = (s.first_position + (r - s.first_row)) / ratio;
    const float* rope = p.entry_rope + r * p.rope_dim;
    float* k = key + e * di;
    for (int i = 0; i < di; ++i) k[i] = round_bf16(k[i]);
    rms_norm(k, p.index_norm, di, p.norm_eps, k);
    rotate(k, di, p.rope_dim, rope, false);
    pack_index_key(k, di, p.pool.index(s.block_table, j, index_key_bytes(di)));
    rotate(latent + e * d, d, p.rope_dim, rope, false);
    pack_main_entry(latent + e * d, d, p.pool.main(s.block_table, j, main_entry_bytes(d)));
  });
}

}  // namespace

void attention_append(const AttentionAppendParams& p, Stream& stream) {
  TF_CHECK_LE(p.head_dim, kRowWidthMax);
  CpuStream& cpu = cpu_stream(stream);
  if (p.qr != nullptr) norm_queries(p, cpu);
  if (p.kv != nullptr) {
    if (p.staged != nullptr) stage_history(p, cpu);
    append_window(p, cpu);
  }
  if (p.a != nullptr) append_entries(p, cpu);
}

}  // namespace cpu
}  // namespace tensorfold
