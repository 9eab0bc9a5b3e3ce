// Attention over window rows and selected entries (kernels/attention_core.h).
//
// A block of four warps takes 16 heads of one row. Keys come in blocks of 64, as in the header:
// unpacked to bf16 in shared memory, scored on tensor cores (each warp 16 keys), weighted in fp32
// (each warp 4 heads), and their bf16 weights multiplied back (each warp a quarter of the
// channels). Nothing depends on what other rows there are.
#include "kernels/attention_core.h"

#include "engine/base/check.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/formats.h"

namespace tensorfold::cuda {
namespace {

constexpr int kHeads = 16;  // of a block
constexpr int kKeys = kAttentionBlock;
constexpr int kWarps = 4;
constexpr int kPad = 8;  // bf16 values after each row, so that rows lie in different banks
constexpr int kWeightStride = kKeys + kPad;
constexpr int kTilesMax = kHeadDimMax / kWarps / 8;  // 8-channel tiles of a warp

struct Shared {
  uint16_t* keys;      // [64][D + 8]
  uint16_t* q;         // [16][D + 8]
  uint16_t* weights;   // [16][72] bf16 P
  float* scores;       // [16][64]
  float* alpha;        // [16]
  float* denominator;  // [16]
  int* present;        // [64]
  __device__ Shared(std::byte* at, int d) {
    keys = reinterpret_cast<uint16_t*>(at);
    q = keys + kKeys * (d + kPad);
    weights = q + kHeads * (d + kPad);
    scores = reinterpret_cast<float*>(weights + kHeads * kWeightStride);
    alpha = scores + kHeads * kKeys;
    denominator = alpha + kHeads;
    present = reinterpret_cast<int*>(denominator + kHeads);
  }
};

constexpr int64_t shared_bytes(int d) {
  return (kKeys + kHeads) * (d + kPad) * 2 + kHeads * kWeightStride * 2 + kHeads * kKeys * 4 +
         2 * kHeads * 4 + kKeys * 4;
}

static_assert(shared_bytes(kHeadDimMax) <= kSharedBlockBytes);

// What a row attends to.
struct RowKeys {
  const AttentionSlice* slice;
  int64_t staged;  // staged row of window slot 0
  int window_slots, entries;
  const int32_t* list;      // window rows by slot, or nullptr
  const int32_t* selected;  // entries by slot
};

__device__ RowKeys row_keys(const AttentionCoreParams& p, int64_t r) {
  RowKeys k;
  k.slice = &p.slice[p.row_slice[r]];
  const AttentionSlice& s = *k.slice;
  const int64_t position = s.first_position + (r - s.first_row);
  k.staged = s.staged_first;
  k.window_slots = s.history + s.rows;
  k.list = nullptr;
  if (p.window_list != nullptr) {
    k.list = p.window_list + r * p.window;
    k.window_slots = p.window;
  } else if (!p.whole_slice) {
    int64_t first = position - p.window + 1 > 0 ? position - p.window + 1 : 0;
    if (first < s.window_floor) first = s.window_floor;
    k.staged = s.staged_first + s.history + (first - s.first_position);
    k.window_slots = static_cast<int>(position - first + 1);
  }
  k.entries = p.selected != nullptr ? p.selected_count[r] : 0;
  k.selected = p.selected != nullptr ? p.selected + r * p.topk : nullptr;
  return k;
}

__device__ void unpack_entry(const uint8_t* row, int d, uint16_t* key) {
  for (int b = lane_of(); b < d / kMainFp4Block; b += 32) {
    const float scale = e4m3_value(row[d / 2 + b]);
    const uint8_t* codes = row + b * kMainFp4Block / 2;
    auto* out = reinterpret_cast<uint32_t*>(key + b * kMainFp4Block);
#pragma unroll
    for (int i = 0; i < kMainFp4Block / 2; ++i) {
      const uint32_t c = codes[i];
      out[i] = pack_bf16(e2m1_value(c & 15u) * scale, e2m1_value(c >> 4) * scale);
    }
  }
}

// Slots [first, first + 64) into shared memory, zeros where there is none.
__device__ void gather_keys(const AttentionCoreParams& p, const RowKeys& k, int first,
                            const Shared& sh) {
  const int d = p.head_dim, lane = lane_of();
  for (int i = warp_of(); i < kKeys; i += kWarps) {
    const int slot = first + i;
    uint16_t* key = sh.keys + i * (d + kPad);
    int64_t staged = -1, entry = -1;
    if (slot < k.window_slots)
      staged = k.list != nullptr ? k.list[slot] : k.staged + slot;
    else if (slot - k.window_slots < k.entries)
      entry = k.selected[slot - k.window_slots];
    if (staged >= 0) {
      const auto* from = reinterpret_cast<const uint4*>(p.staged + staged * d);
      for (int c = lane; c < d / 8; c += 32) reinterpret_cast<uint4*>(key)[c] = from[c];
    } else if (entry >= 0) {
      const int64_t block = k.slice->block_table[entry / p.pool.entries_per_block];
      unpack_entry(p.pool.base + block * p.pool.block_bytes + p.pool.main_offset +
                       entry % p.pool.entries_per_block * main_entry_bytes(d),
                   d, key);
    } else {
      for (int c = lane; c < d / 8; c += 32) reinterpret_cast<uint4*>(key)[c] = uint4{0, 0, 0, 0};
    }
    if (lane == 0) sh.present[i] = staged >= 0 || entry >= 0 ? 1 : 0;
  }
}

// scores[head][key] = q . key * scale; -infinity where there is no key.
__device__ void score_keys(const Shared& sh, int d, float scale) {
  const int lane = lane_of(), g = lane >> 2, c = lane & 3;
  const int first = warp_of() * 16;
  const uint16_t* top = sh.q + g * (d + kPad) + c * 8;
  const uint16_t* key = sh.keys + (first + g) * (d + kPad) + c * 8;
  Sum acc[2][4];
#pragma unroll 4
  for (int at = 0; at < d; at += kChunk) {
    const uint4 a0 = *reinterpret_cast<const uint4*>(top + at);
    const uint4 a1 = *reinterpret_cast<const uint4*>(top + 8 * (d + kPad) + at);
#pragma unroll
    for (int n = 0; n < 2; ++n)
      mma_chunk(acc[n], a0, a1, *reinterpret_cast<const uint4*>(key + n * 8 * (d + kPad) + at));
  }
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = first + n * 8 + c * 2 + (i & 1);
      sh.scores[(g + (i >> 1) * 8) * kKeys + k] =
          sh.present[k] != 0 ? acc[n][i].total() * scale : -INFINITY;
    }
}

// Four heads of a warp: running maximum, P, denominator. m and l belong to lane h of each head.
__device__ void weigh_keys(const Shared& sh, float (&m)[4], float (&l)[4]) {
  const int lane = lane_of();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int h = warp_of() * 4 + i;
    const float s0 = sh.scores[h * kKeys + lane], s1 = sh.scores[h * kKeys + 32 + lane];
    float largest = fmaxf(s0, s1);
    for (int step = 16; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    const float now = largest > m[i] ? largest : m[i];
    const float alpha = exp_near(m[i] - now);
    const float p0 = exp_near(s0 - now), p1 = exp_near(s1 - now);
    const float sum = sum_columns(p0 + p1);
    sh.weights[h * kWeightStride + lane] = to_bf16(p0);
    sh.weights[h * kWeightStride + 32 + lane] = to_bf16(p1);
    l[i] = l[i] * alpha + sum;
    m[i] = now;
    if (lane == 0) sh.alpha[h] = alpha;
  }
}

// B operand of 16 keys x 8 channels from row-major keys.
__device__ void load_values(const uint16_t* at, uint32_t& b0, uint32_t& b1) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(b0), "=r"(b1)
               : "r"(address));
}

// acc = acc * alpha + P . keys over the warp's channels.
__device__ void accumulate(const Shared& sh, int d, int tiles, float (&acc)[kTilesMax][4]) {
  const int lane = lane_of(), g = lane >> 2, c = lane & 3;
  const float top = sh.alpha[g], bottom = sh.alpha[g + 8];
  uint32_t a[kKeys / 16][4];
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
    const uint16_t* w = sh.weights + g * kWeightStride + k * 16 + c * 2;
    a[k][0] = *reinterpret_cast<const uint32_t*>(w);
    a[k][1] = *reinterpret_cast<const uint32_t*>(w + 8 * kWeightStride);
    a[k][2] = *reinterpret_cast<const uint32_t*>(w + 8);
    a[k][3] = *reinterpret_cast<const uint32_t*>(w + 8 * kWeightStride + 8);
  }
#pragma unroll
  for (int t = 0; t < kTilesMax; ++t) {
    if (t >= tiles) break;
    const int channel = (warp_of() * tiles + t) * 8;
    Sum sum[4];
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t b0, b1;
      load_values(sh.keys + (k * 16 + (lane & 15)) * (d + kPad) + channel, b0, b1);
      mma_add(sum, a[k][0], a[k][1], a[k][2], a[k][3], b0, b1);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[t][i] = acc[t][i] * (i < 2 ? top : bottom) + sum[i].total();
  }
}

// Heads [first_head, + 16) of a row, rotated, as bf16; absent heads are zero.
__device__ void load_queries(const AttentionCoreParams& p, int64_t r, int first_head,
                             const Shared& sh) {
  const int d = p.head_dim;
  float* row = sh.scores + warp_of() * (kHeads * kKeys / kWarps);  // 256 floats, for the rope part
  for (int i = warp_of(); i < kHeads; i += kWarps) {
    uint16_t* out = sh.q + i * (d + kPad);
    if (first_head + i >= p.heads) {
      for (int k = lane_of(); k < d; k += 32) out[k] = 0;
      continue;
    }
    const uint16_t* q = p.q + (r * p.heads + first_head + i) * d;
    const int rope_dim = p.rope != nullptr ? p.rope_dim : 0;
    for (int k = lane_of(); k < d - rope_dim; k += 32) out[k] = q[k];
    for (int at = 0; at < rope_dim; at += 256) {
      const int n = min(256, rope_dim - at);
      __syncwarp();
      for (int k = lane_of(); k < n; k += 32) row[k] = bf16_value(q[d - rope_dim + at + k]);
      warp_rotate(row, n, n, p.rope + r * rope_dim + at, false);
      for (int k = lane_of(); k < n; k += 32) out[d - rope_dim + at + k] = to_bf16(row[k]);
    }
  }
}

// o = bf16(numerator / denominator), the inverse rotation, bf16. A lane holds neighboring channels.
__device__ void store_output(const AttentionCoreParams& p, int64_t r, int first_head,
                             const Shared& sh, int tiles, const float (&acc)[kTilesMax][4]) {
  const int lane = lane_of(), g = lane >> 2, c = lane & 3, d = p.head_dim;
#pragma unroll
  for (int t = 0; t < kTilesMax; ++t) {
    if (t >= tiles) break;
    const int channel = (warp_of() * tiles + t) * 8 + c * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = g + half * 8;
      if (first_head + h >= p.heads) continue;
      const float denominator = sh.denominator[h];
      float re = round_bf16(acc[t][half * 2] / denominator);
      float im = round_bf16(acc[t][half * 2 + 1] / denominator);
      if (p.rope != nullptr && channel >= d - p.rope_dim) {
        const float* table = p.rope + r * p.rope_dim + (channel - (d - p.rope_dim));
        const float cosine = table[0], sine = -table[1];
        const float turned = re * cosine - im * sine;
        im = re * sine + im * cosine;
        re = turned;
      }
      *reinterpret_cast<uint32_t*>(p.out + (r * p.heads + first_head + h) * d + channel) =
          pack_bf16(re, im);
    }
  }
}

__global__ void __launch_bounds__(kWarps * 32) attention_core_kernel(AttentionCoreParams p) {
  extern __shared__ __align__(16) std::byte memory[];
  const Shared sh(memory, p.head_dim);
  const int64_t r = blockIdx.x;
  const int first_head = blockIdx.y * kHeads, d = p.head_dim, tiles = d / 32;
  const float scale = 1.0f / sqrtf(static_cast<float>(d));
  const RowKeys keys = row_keys(p, r);
  load_queries(p, r, first_head, sh);
  float acc[kTilesMax][4] = {};
  float m[4] = {-1e30f, -1e30f, -1e30f, -1e30f}, l[4] = {};
  const int slots = keys.window_slots + keys.entries;
  for (int first = 0; first < slots; first += kKeys) {
    __syncthreads();
    gather_keys(p, keys, first, sh);
    __syncthreads();
    score_keys(sh, d, scale);
    __syncthreads();
    weigh_keys(sh, m, l);
    __syncthreads();
    accumulate(sh, d, tiles, acc);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int h = warp_of() * 4 + i;
    if (lane_of() == 0 && first_head + h < p.heads)
      sh.denominator[h] = l[i] + exp_near(p.sink[first_head + h] - m[i]);
  }
  __syncthreads();
  store_output(p, r, first_head, sh, tiles, acc);
}

}  // namespace

void attention_core(const AttentionCoreParams& p, Stream& stream) {
  TF_CHECK_EQ(p.head_dim % 32, 0);
  TF_CHECK_LE(p.head_dim, kHeadDimMax);
  if (p.rows == 0) return;
  CudaStream& s = cuda_stream(stream);
  const int64_t bytes = shared_bytes(p.head_dim);
  allow_shared(s, attention_core_kernel, bytes);
  attention_core_kernel<<<dim3(p.rows, blocks_of(p.heads, kHeads)), kWarps * 32, bytes,
                          s.handle()>>>(p);
  s.launched("attention_core", p.rows, p.heads, p.head_dim);
}

}  // namespace tensorfold::cuda
