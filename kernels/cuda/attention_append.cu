// New rows enter the cache (kernels/attention_append.h), in the header's order. A new window row
// and a query latent have a thread block each, what comes out of a ring or becomes an entry a warp;
// the row lies in shared memory.
#include "kernels/attention_append.h"

#include <algorithm>

#include "engine/base/check.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/formats.h"

namespace tensorfold::cuda {

int64_t attention_append_bytes(const WorkspaceShape& s) {
  return 2 * Pieces::padded(int64_t{s.rows} * s.head_dim * 2) +
         Pieces::padded(int64_t{s.rows} * s.index_dim * 4);
}

namespace {

constexpr int kWarps = 4;         // rows of a block
constexpr int kWarmRowsMax = 64;  // more rows keep the memory busy themselves

__device__ int64_t position_of(const AttentionSlice& s, int64_t r) {
  return s.first_position + (r - s.first_row);
}

// ---------------------------------------------------------------- window and query part
// Blocks of one launch by what they do.
struct Roles {
  int stage = 0, append = 0, norm = 0, warm = 0;  // blocks of each, in this order
  int stage_blocks = 1;                           // of a slice
};

// 16 channels of a packed window row as bf16.
__device__ void unpack_window(const uint8_t* row, int d, int first, uint16_t* out) {
  const float scale = ue8m0_value(row[d + first / kFp8Block]);
  const uint4 codes = *reinterpret_cast<const uint4*>(row + first);
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t pairs[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t two = words[i / 2] >> (16 * (i % 2));
    pairs[i] = pack_bf16(e4m3_value(static_cast<uint8_t>(two)) * scale,
                         e4m3_value(static_cast<uint8_t>(two >> 8)) * scale);
  }
  auto* to = reinterpret_cast<uint4*>(out + first);
  to[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  to[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
}

// A row of a slice's past comes out of the ring.
__device__ void stage_row(const AttentionAppendParams& p, const AttentionSlice& s, int h) {
  const int d = p.head_dim;
  const int64_t position = s.first_position - s.history + h;
  const uint8_t* row = s.rings + p.ring_offset + position % p.ring_rows * window_row_bytes(d);
  uint16_t* out = p.staged + (s.staged_first + h) * int64_t{d};
  if (reinterpret_cast<uintptr_t>(row) % 16 == 0) {
    for (int i = lane_of() * 16; i < d; i += 32 * 16) unpack_window(row, d, i, out);
    return;
  }
  for (int i = lane_of(); i < d; i += 32)
    out[i] = to_bf16(e4m3_value(row[i]) * ue8m0_value(row[d + i / kFp8Block]));
}

// A slice's own row, by a block. shared: block_sum_floats(D) + D floats.
__device__ void append_row(const AttentionAppendParams& p, int64_t r, float* shared) {
  const AttentionSlice& s = p.slice[p.row_slice[r]];
  const int d = p.head_dim, i = static_cast<int>(r - s.first_row);
  float* row = shared + block_sum_floats(d);
  for (int k = threadIdx.x; k < d; k += kWarps * 32) row[k] = bf16_value(p.kv[r * d + k]);
  __syncthreads();
  const float squares = block_sum(d, shared, [row](int k) { return row[k] * row[k]; });
  const float inverse = inverse_rms(squares, d, p.norm_eps);
  for (int k = threadIdx.x; k < d; k += kWarps * 32)
    row[k] = round_bf16(p.kv_norm[k] * (row[k] * inverse));
  __syncthreads();
  if (warp_of() == 0) warp_rotate(row, d, p.rope_dim, p.rope + r * p.rope_dim, false);
  __syncthreads();
  // Older ones would be overwritten by this slice itself.
  const bool keep = !p.stage_only && i >= s.rows - p.ring_rows;
  uint8_t* ring =
      s.rings + p.ring_offset + (s.first_position + i) % p.ring_rows * window_row_bytes(d);
#pragma unroll 1
  for (int k = threadIdx.x; k < d; k += kWarps * 32) {  // a warp has a block of one scale
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

// The query latent of a row, by a block.
__device__ void norm_row(const AttentionAppendParams& p, int64_t r, float* shared) {
  const int n = p.q_width;
  float* row = shared + block_sum_floats(n);
  uint16_t* x = p.qr + r * n;
  for (int i = threadIdx.x; i < n; i += kWarps * 32) row[i] = bf16_value(x[i]);
  __syncthreads();
  const float squares = block_sum(n, shared, [row](int i) { return row[i] * row[i]; });
  const float inverse = inverse_rms(squares, n, p.norm_eps);
  for (int i = threadIdx.x; i < n; i += kWarps * 32)
    x[i] = to_bf16(p.q_norm[i] * (row[i] * inverse));
}

// Into the L2, a thread a run of bytes.
__device__ void warm_up(const AttentionAppendParams& p) {
#if __CUDA_ARCH__ >= 900
  constexpr int64_t kRunBytes = 32 << 10;
  for (int i = 0; i < p.warms; ++i) {
    const int64_t bytes = p.warm[i].bytes / 16 * 16;
    const auto* data = static_cast<const std::byte*>(p.warm[i].data);
    for (int64_t at = threadIdx.x * kRunBytes; at < bytes; at += kWarps * 32 * kRunBytes)
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(data + at),
                   "r"(static_cast<uint32_t>(min(kRunBytes, bytes - at))));
  }
#endif
}

__global__ void __launch_bounds__(kWarps * 32)
    append_window_kernel(const __grid_constant__ AttentionAppendParams p, Roles roles) {
  extern __shared__ float shared[];
  int b = static_cast<int>(blockIdx.x);
  if (b >= static_cast<int>(gridDim.x) - roles.warm) warm_up(p);  // waits for nobody
  begin_programmatic();
  if (b < roles.stage) {
    const AttentionSlice& s = p.slice[b / roles.stage_blocks];
    const int h = b % roles.stage_blocks * kWarps + warp_of();
    if (h < s.history) stage_row(p, s, h);
    return;
  }
  b -= roles.stage;
  if (b < roles.append) return append_row(p, b, shared);
  b -= roles.append;
  if (b < roles.norm) norm_row(p, b, shared);
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

// Compressor inputs stay by position, after the latents that may need what they overwrite.
__device__ void keep_pair(const AttentionAppendParams& p, int64_t r) {
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

// The latent of the entry that row r completes, and the index projection's input. Rows that
// complete none give zeros.
// The blocks behind the first `latent_blocks` keep a row's compressor inputs.
__global__ void __launch_bounds__(kWarps * 32)
    entry_latent_kernel(AttentionAppendParams p, bool quantise, uint16_t* latent, uint16_t* input,
                        int latent_blocks) {
  extern __shared__ float rows[];
  begin_programmatic();
  const int block = static_cast<int>(blockIdx.x);
  if (block >= latent_blocks) return keep_pair(p, block - latent_blocks);
  const int64_t r = int64_t{block} * kWarps + warp_of();
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

// A pair of neighboring lanes' codes as one byte, valid in even lanes.
__device__ uint8_t pair_codes(uint8_t code) {
  const unsigned other = __shfl_down_sync(~0u, static_cast<unsigned>(code), 1);
  return static_cast<uint8_t>(code | (other << 4));
}

__global__ void __launch_bounds__(kWarps * 32)
    append_entry_kernel(AttentionAppendParams p, const uint16_t* latent, const float* keys) {
  extern __shared__ float rows[];
  const int64_t r = int64_t{blockIdx.x} * kWarps + warp_of();
  begin_programmatic();
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

void launch_window(const AttentionAppendParams& p, const Roles& roles, const char* name,
                   CudaStream& s) {
  int64_t floats = int64_t{block_sum_floats(p.head_dim)} + p.head_dim;
  if (roles.norm > 0) floats = std::max(floats, int64_t{block_sum_floats(p.q_width)} + p.q_width);
  allow_shared(s, append_window_kernel, floats * 4);
  launch_programmatic(s, append_window_kernel,
                      dim3(roles.stage + roles.append + roles.norm + roles.warm), kWarps * 32,
                      floats * 4, 1, p, roles);
  s.launched(name, p.rows, p.slices, p.head_dim);
}

// So few rows write no ring row that is still to be staged: then it is one launch.
void append_window(const AttentionAppendParams& p, CudaStream& s) {
  Roles roles;
  roles.stage_blocks = blocks_of(p.ring_rows, kWarps);
  if (p.staged != nullptr && p.kv != nullptr) roles.stage = p.slices * roles.stage_blocks;
  const bool together = p.rows <= kRingSpareRows;
  if (roles.stage > 0 && !together) {
    launch_window(p, roles, "stage_history", s);
    roles.stage = 0;
  }
  if (p.kv != nullptr) roles.append = p.rows;
  if (p.qr != nullptr) roles.norm = p.rows;
  if (p.warms > 0 && p.rows <= kWarmRowsMax && s.warms()) roles.warm = 1;
  launch_window(p, roles, "append_window", s);
}

void append_entries(const AttentionAppendParams& p, CudaStream& s) {
  Pieces pieces(p.workspace);
  uint16_t* latent = pieces.take<uint16_t>(int64_t{p.rows} * p.head_dim);
  uint16_t* input = pieces.take<uint16_t>(int64_t{p.rows} * p.head_dim);
  float* keys = pieces.take<float>(int64_t{p.rows} * p.index_dim);
  const int blocks = blocks_of(p.rows, kWarps);
  const bool quantise = p.index_wk->quantise_input, pairs = p.pool.ratio == 2;
  const auto launch_latents = [&](int latents, int kept) {
    launch_programmatic(s, entry_latent_kernel, dim3(latents + kept), kWarps * 32,
                        kWarps * p.head_dim * 4, 1, p, quantise, latent, input, latents);
    s.launched("entry_latent", p.rows, p.head_dim, p.pool.ratio);
  };
  // So few rows overwrite no compressor input that a latent of the same launch still needs.
  const bool together = p.rows < kPairRingRows;
  launch_latents(blocks, pairs && together ? p.rows : 0);
  if (pairs && !together) launch_latents(0, p.rows);
  DenseProduct d;
  d.w = p.index_wk;
  d.x = input;
  d.x_stride = p.head_dim;
  d.rows = p.rows;
  d.y = keys;
  d.y_stride = p.index_dim;
  dense(d, s);
  const int widest = p.head_dim > p.index_dim ? p.head_dim : p.index_dim;
  launch_programmatic(s, append_entry_kernel, dim3(blocks), kWarps * 32, kWarps * widest * 4, 1, p,
                      latent, keys);
  s.launched("append_entry", p.rows, p.head_dim, p.index_dim);
}

}  // namespace

void attention_append(const AttentionAppendParams& p, Stream& stream) {
  TF_CHECK_LE(p.head_dim, kRowWidthMax);
  TF_CHECK(p.pool.ratio == 1 || p.pool.ratio == 2);
  if (p.rows == 0) return;
  CudaStream& s = cuda_stream(stream);
  if (p.kv != nullptr || p.qr != nullptr) append_window(p, s);
  if (p.a != nullptr) append_entries(p, s);
}

}  // namespace tensorfold::cuda
