// New rows enter the cache (kernels/attention_append.h), in the header's order. A warp works on one
// row at a time, which lies in shared memory.
#include "kernels/attention_append.h"

#include "engine/base/check.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/formats.h"

namespace tensorfold::cuda {

int64_t attention_append_bytes(const WorkspaceShape& s) {
  return 2 * Pieces::padded(int64_t{s.rows} * s.head_dim * 2) +
         Pieces::padded(int64_t{s.rows} * s.index_dim * 4);
}

namespace {

constexpr int kWarps = 4;  // rows of a block

__device__ int64_t position_of(const AttentionSlice& s, int64_t r) {
  return s.first_position + (r - s.first_row);
}

// ---------------------------------------------------------------- window part
// Rows of a slice's past come out of the ring.
__global__ void __launch_bounds__(kWarps * 32) stage_history_kernel(AttentionAppendParams p) {
  const AttentionSlice& s = p.slice[blockIdx.x];
  const int h = blockIdx.y * kWarps + warp_of();
  if (h >= s.history) return;
  const int d = p.head_dim;
  const int64_t position = s.first_position - s.history + h;
  const uint8_t* row = s.rings + p.ring_offset + position % p.ring_rows * window_row_bytes(d);
  uint16_t* out = p.staged + (s.staged_first + h) * int64_t{d};
  for (int i = lane_of(); i < d; i += 32)
    out[i] = to_bf16(e4m3_value(row[i]) * ue8m0_value(row[d + i / kFp8Block]));
}

// The slice's own rows.
__global__ void __launch_bounds__(kWarps * 32) append_window_kernel(AttentionAppendParams p) {
  extern __shared__ float rows[];
  const int64_t r = int64_t{blockIdx.x} * kWarps + warp_of();
  if (r >= p.rows) return;
  const AttentionSlice& s = p.slice[p.row_slice[r]];
  const int d = p.head_dim, i = static_cast<int>(r - s.first_row);
  float* row = rows + warp_of() * d;
  for (int k = lane_of(); k < d; k += 32) row[k] = bf16_value(p.kv[r * d + k]);
  warp_rms_norm(row, p.kv_norm, d, p.norm_eps);
  warp_rotate(row, d, p.rope_dim, p.rope + r * p.rope_dim, false);
  // Older ones would be overwritten by this slice itself.
  const bool keep = !p.stage_only && i >= s.rows - p.ring_rows;
  uint8_t* ring =
      s.rings + p.ring_offset + (s.first_position + i) % p.ring_rows * window_row_bytes(d);
  for (int k = lane_of(); k < d; k += 32) {
    uint8_t scale;
    const uint8_t code = quantise_fp8_lanes(row[k], scale);
    if (p.staged != nullptr)
      p.staged[(s.staged_first + s.history + i) * int64_t{d} + k] =
          to_bf16(e4m3_value(code) * ue8m0_value(scale));
    if (!keep) continue;
    ring[k] = code;
    if (lane_of() == 0) ring[d + k / kFp8Block] = scale;
  }
}

// ---------------------------------------------------------------- source part
__device__ bool completes_entry(const AttentionAppendParams& p, const AttentionSlice& s,
                                int64_t r) {
  return (position_of(s, r) + 1) % p.pool.ratio == 0;
}

// Softmax over the two positions of a pair, per channel, and the weighted sum, rounded to bf16.
__device__ float pool_pair(float a0, float g0, float a1, float g1) {
  const float m = fmaxf(g0, g1);
  const float e0 = exp_near(g0 - m), e1 = exp_near(g1 - m);
  const float sum = e0 + e1;
  return round_bf16(a0 * (e0 / sum) + a1 * (e1 / sum));
}

// The latent of the entry that row r completes, and the index projection's input. Rows that
// complete none give zeros.
__global__ void __launch_bounds__(kWarps * 32)
    entry_latent_kernel(AttentionAppendParams p, bool quantise, uint16_t* latent, uint16_t* input) {
  extern __shared__ float rows[];
  const int64_t r = int64_t{blockIdx.x} * kWarps + warp_of();
  if (r >= p.rows) return;
  const AttentionSlice& s = p.slice[p.row_slice[r]];
  const int d = p.head_dim;
  if (!completes_entry(p, s, r)) {
    for (int k = lane_of(); k < d; k += 32) input[r * d + k] = 0;
    return;
  }
  float* row = rows + warp_of() * d;
  if (p.pool.ratio == 1) {
    const auto* a = static_cast<const uint16_t*>(p.a);
    for (int k = lane_of(); k < d; k += 32) row[k] = bf16_value(a[r * d + k]);
  } else {
    const auto* a = static_cast<const float*>(p.a);
    const int64_t before = position_of(s, r) - 1;
    const float* ring = s.pair_rings + p.pair_offset + before % kPairRingRows * 2 * d;
    const float* a0 = r > s.first_row ? a + (r - 1) * d : ring;
    const float* g0 = r > s.first_row ? p.g + (r - 1) * d : ring + d;
    for (int k = lane_of(); k < d; k += 32)
      row[k] = pool_pair(a0[k], g0[k], a[r * d + k], p.g[r * d + k]);
  }
  warp_rms_norm(row, p.latent_norm, d, p.norm_eps);
  for (int k = lane_of(); k < d; k += 32) {
    latent[r * d + k] = to_bf16(row[k]);
    input[r * d + k] = to_bf16(quantise ? fake_fp8_lanes(row[k]) : row[k]);
  }
}

// Compressor inputs stay by position, after the latents that may need what they overwrite.
__global__ void keep_pair_kernel(AttentionAppendParams p) {
  const int64_t r = blockIdx.x;
  const AttentionSlice& s = p.slice[p.row_slice[r]];
  const int d = p.head_dim, i = static_cast<int>(r - s.first_row);
  if (i < s.rows - kPairRingRows) return;
  float* row = s.pair_rings + p.pair_offset + (s.first_position + i) % kPairRingRows * 2 * d;
  const auto* a = static_cast<const float*>(p.a);
  for (int k = threadIdx.x; k < d; k += blockDim.x) {
    row[k] = a[r * d + k];
    row[d + k] = p.g[r * d + k];
  }
}

// A pair of neighboring lanes' codes as one byte, valid in even lanes.
__device__ uint8_t pair_codes(uint8_t code) {
  const unsigned other = __shfl_down_sync(~0u, static_cast<unsigned>(code), 1);
  return static_cast<uint8_t>(code | (other << 4));
}

__global__ void __launch_bounds__(kWarps * 32)
    append_entry_kernel(AttentionAppendParams p, const uint16_t* latent, const float* keys) {
  extern __shared__ float rows[];
  const int64_t r = int64_t{blockIdx.x} * kWarps + warp_of();
  if (r >= p.rows) return;
  const AttentionSlice& s = p.slice[p.row_slice[r]];
  if (!completes_entry(p, s, r)) return;
  const int d = p.head_dim, di = p.index_dim, lane = lane_of();
  const int64_t j = position_of(s, r) / p.pool.ratio;
  const float* rope = p.entry_rope + r * p.rope_dim;
  float* row = rows + warp_of() * max(d, di);
  const int64_t block = s.block_table[j / p.pool.entries_per_block];
  const int64_t within = j % p.pool.entries_per_block;
  uint8_t* base = p.pool.base + block * p.pool.block_bytes;

  uint8_t* key = base + p.pool.index_offset + within * index_key_bytes(di);
  for (int k = lane; k < di; k += 32) row[k] = round_bf16(keys[r * di + k]);
  warp_rms_norm(row, p.index_norm, di, p.norm_eps);
  warp_rotate(row, di, p.rope_dim, rope, false);
  for (int k = lane; k < di; k += 32) {
    uint8_t scale;
    const uint8_t codes = pair_codes(quantise_fp4_ue8m0_lanes(row[k], scale));
    if (lane % 2 == 0) key[k / 2] = codes;
    if (lane == 0) key[di / 2 + k / kFp8Block] = scale;
  }
  __syncwarp();
  uint8_t* entry = base + p.pool.main_offset + within * main_entry_bytes(d);
  for (int k = lane; k < d; k += 32) row[k] = bf16_value(latent[r * d + k]);
  warp_rotate(row, d, p.rope_dim, rope, false);
  for (int k = lane; k < d; k += 32) {
    uint8_t scale;
    const uint8_t codes = pair_codes(quantise_fp4_e4m3_lanes(row[k], scale));
    if (lane % 2 == 0) entry[k / 2] = codes;
    if (lane % kMainFp4Block == 0) entry[d / 2 + k / kMainFp4Block] = scale;
  }
}

void append_window(const AttentionAppendParams& p, CudaStream& s) {
  if (p.staged != nullptr) {
    const dim3 grid(p.slices, blocks_of(p.ring_rows, kWarps));
    stage_history_kernel<<<grid, kWarps * 32, 0, s.handle()>>>(p);
    s.launched("stage_history", p.slices, p.ring_rows, p.head_dim);
  }
  append_window_kernel<<<blocks_of(p.rows, kWarps), kWarps * 32, kWarps * p.head_dim * 4,
                         s.handle()>>>(p);
  s.launched("append_window", p.rows, p.head_dim);
}

void append_entries(const AttentionAppendParams& p, CudaStream& s) {
  Pieces pieces(p.workspace);
  uint16_t* latent = pieces.take<uint16_t>(int64_t{p.rows} * p.head_dim);
  uint16_t* input = pieces.take<uint16_t>(int64_t{p.rows} * p.head_dim);
  float* keys = pieces.take<float>(int64_t{p.rows} * p.index_dim);
  const int blocks = blocks_of(p.rows, kWarps);
  entry_latent_kernel<<<blocks, kWarps * 32, kWarps * p.head_dim * 4, s.handle()>>>(
      p, p.index_wk->quantise_input, latent, input);
  s.launched("entry_latent", p.rows, p.head_dim, p.pool.ratio);
  if (p.pool.ratio == 2) {
    keep_pair_kernel<<<p.rows, 128, 0, s.handle()>>>(p);
    s.launched("keep_pair", p.rows, p.head_dim);
  }
  DenseProduct d;
  d.w = p.index_wk;
  d.x = input;
  d.x_stride = p.head_dim;
  d.rows = p.rows;
  d.y = keys;
  d.y_stride = p.index_dim;
  dense(d, s);
  const int widest = p.head_dim > p.index_dim ? p.head_dim : p.index_dim;
  append_entry_kernel<<<blocks, kWarps * 32, kWarps * widest * 4, s.handle()>>>(p, latent, keys);
  s.launched("append_entry", p.rows, p.head_dim, p.index_dim);
}

}  // namespace

void attention_append(const AttentionAppendParams& p, Stream& stream) {
  TF_CHECK_LE(p.head_dim, kRowWidthMax);
  TF_CHECK(p.pool.ratio == 1 || p.pool.ratio == 2);
  if (p.rows == 0) return;
  CudaStream& s = cuda_stream(stream);
  if (p.kv != nullptr) append_window(p, s);
  if (p.a != nullptr) append_entries(p, s);
}

}  // namespace tensorfold::cuda
