// What both kernels of attention (attention_rows.cu: a row's key blocks one after the other;
// attention_split.cu: shared by a cluster) have in common, and the order in which both add, so that
// they give the same bits: eight warps, 16 heads of a row, one block of 64 keys in shared memory.
//
// Sums are chains of two products, added in fp32: what is made of them (P, the result) is rounded
// to bf16, and no quantiser follows before the output projection. (Longer chains lose more: a
// product's addition cuts off. Of the recorded results one to four more figures were past their
// bounds then.)
#pragma once

#include <cuda_bf16.h>

#include "kernels/attention_core.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/formats.h"

namespace tensorfold::cuda {

inline constexpr int kTileHeads = 16;
inline constexpr int kTileKeys = kAttentionBlock;
inline constexpr int kTileWarps = 8;
inline constexpr int kTileThreads = kTileWarps * 32;
inline constexpr int kTilePad = 8;  // bf16 values after each row, so that rows lie in other banks
inline constexpr int kWeightStride = kTileKeys + kTilePad;
inline constexpr int kKeysOfWarp = kTileKeys / kTileWarps;
inline constexpr int kTilesMax = kHeadDimMax / kTileWarps / 8;  // 8-channel tiles of a warp
inline constexpr float kNoMaximum = -1e30f;

// What one group of warps works on.
struct KeyTile {
  uint16_t* keys;     // [64][D + 8]
  uint16_t* weights;  // [16][72] bf16 P
  float* scores;      // [16][64]
  uint64_t* row;      // [64] address of the key's row, 0: none
  int* kind;          // [64] 0 none, 1 staged row, 2 packed entry
};
constexpr int64_t key_tile_bytes(int d) {
  return kTileKeys * (d + kTilePad) * 2 + kTileHeads * kWeightStride * 2 +
         kTileHeads * kTileKeys * 4 + kTileKeys * 8 + kTileKeys * 4;
}
__device__ inline KeyTile key_tile(std::byte* at, int d) {
  KeyTile t;
  t.keys = reinterpret_cast<uint16_t*>(at);
  t.weights = t.keys + kTileKeys * (d + kTilePad);
  t.scores = reinterpret_cast<float*>(t.weights + kTileHeads * kWeightStride);
  t.row = reinterpret_cast<uint64_t*>(t.scores + kTileHeads * kTileKeys);
  t.kind = reinterpret_cast<int*>(t.row + kTileKeys);
  return t;
}

// What a row attends to.
struct RowKeys {
  const AttentionSlice* slice;
  int64_t staged;  // staged row of window slot 0
  int window_slots, entries;
  const int32_t* list;      // window rows by slot, or nullptr
  const int32_t* selected;  // entries by slot
};

__device__ inline RowKeys row_keys(const AttentionCoreParams& p, int64_t r) {
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

// Slots [first, first + 64): where each key lies. t: thread of the group; a barrier must follow.
__device__ inline void find_keys(const AttentionCoreParams& p, const RowKeys& k, int first,
                                 const KeyTile& tile, int t) {
  if (t >= kTileKeys) return;
  const int slot = first + t;
  int64_t staged = -1, entry = -1;
  if (slot < k.window_slots)
    staged = k.list != nullptr ? k.list[slot] : k.staged + slot;
  else if (slot - k.window_slots < k.entries)
    entry = k.selected[slot - k.window_slots];
  const void* row = nullptr;
  int kind = 0;
  if (staged >= 0) {
    row = p.staged + staged * p.head_dim;
    kind = 1;
  } else if (entry >= 0) {
    const int64_t block = k.slice->block_table[entry / p.pool.entries_per_block];
    row = p.pool.base + block * p.pool.block_bytes + p.pool.main_offset +
          entry % p.pool.entries_per_block * main_entry_bytes(p.head_dim);
    kind = 2;
  }
  tile.row[t] = reinterpret_cast<uint64_t>(row);
  tile.kind[t] = kind;
}

// Two e2m1 codes a 16-bit half -> bf16 pairs times the scale: all products are exact in bf16.
// codes: four codes in the low 16 bits. low: codes 0 and 1, high: 2 and 3.
__device__ inline void widen_fp4(uint32_t codes, __nv_bfloat162 scale, uint32_t& low,
                                 uint32_t& high) {
  const uint32_t magnitude = codes & 0x7777u;
  const uint32_t tops = __byte_perm(0x3F3F3F00u, 0x40404040u, magnitude);
  const uint32_t ends = __byte_perm(0xC0800000u, 0xC0804000u, magnitude);
  low = __byte_perm(ends, tops, 0x5140u) | (codes & 8u) << 12 | (codes & 0x80u) << 24;
  high = __byte_perm(ends, tops, 0x7362u) | (codes & 0x800u) << 4 | (codes & 0x8000u) << 16;
  const __nv_bfloat162 a = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&low), scale);
  const __nv_bfloat162 b = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&high), scale);
  low = *reinterpret_cast<const uint32_t*>(&a);
  high = *reinterpret_cast<const uint32_t*>(&b);
}

// A piece of a key as it lies in memory: 16 channels of a staged row, or a block of 16 codes.
struct KeyPiece {
  uint4 a, b;  // staged: 32 bytes; packed: 8 bytes of codes in a.x, a.y and the scale in a.z
};

// row: 16 channels of kind 1 (staged row) or 2 (packed entry), part `part`; anything else is zeros.
__device__ inline KeyPiece load_piece(const uint8_t* row, int kind, int part, int d) {
  KeyPiece v = {};
  if (kind == 1) {
    v.a = *reinterpret_cast<const uint4*>(row + part * 32);
    v.b = *reinterpret_cast<const uint4*>(row + part * 32 + 16);
  } else if (kind == 2) {
    const uint8_t* codes = row + part * kMainFp4Block / 2;
    if (d % 128 == 0) {  // entries of whole 8 bytes
      const uint2 c = __ldg(reinterpret_cast<const uint2*>(codes));
      v.a.x = c.x;
      v.a.y = c.y;
    } else {
      for (int i = 0; i < 4; ++i) {
        v.a.x |= uint32_t{codes[i]} << (8 * i);
        v.a.y |= uint32_t{codes[4 + i]} << (8 * i);
      }
    }
    v.a.z = row[d / 2 + part];
  }
  return v;
}
__device__ inline KeyPiece load_piece(const KeyTile& tile, int key, int part, int d) {
  return load_piece(reinterpret_cast<const uint8_t*>(tile.row[key]), tile.kind[key], part, d);
}

// The piece as 16 bf16 values.
__device__ inline void widen_piece(int kind, KeyPiece& v) {
  if (kind != 2) return;
  const uint32_t c0 = v.a.x, c1 = v.a.y;
  const __nv_bfloat162 scale = __float2bfloat162_rn(e4m3_value(static_cast<uint8_t>(v.a.z)));
  widen_fp4(c0 & 0xffffu, scale, v.a.x, v.a.y);
  widen_fp4(c0 >> 16, scale, v.a.z, v.a.w);
  widen_fp4(c1 & 0xffffu, scale, v.b.x, v.b.y);
  widen_fp4(c1 >> 16, scale, v.b.z, v.b.w);
}

__device__ inline void store_piece(const KeyTile& tile, int key, int part, int d, KeyPiece v) {
  widen_piece(tile.kind[key], v);
  auto* to = reinterpret_cast<uint4*>(tile.keys + key * (d + kTilePad) + part * 16);
  to[0] = v.a;
  to[1] = v.b;
}

// Whether packed entries are read in whole pieces of 16 bytes: 512 channels, all of it aligned.
inline bool entries_in_pieces(const AttentionCoreParams& p) {
  return p.head_dim == kHeadDimMax && p.pool.block_bytes % 16 == 0 &&
         p.pool.main_offset % 16 == 0 && reinterpret_cast<uintptr_t>(p.pool.base) % 16 == 0;
}
// 16 bytes into shared memory, not waited for.
__device__ __forceinline__ void copy_piece(const void* to, const void* from) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

// Heads [first_head, + 16) of a row, rotated, as bf16 [16][D + 8]; absent heads are zero. By all
// threads of the block; a barrier must follow.
__device__ inline void load_queries(const AttentionCoreParams& p, int64_t r, int first_head, int d,
                                    uint16_t* to) {
  const int eights = d / 8;
  const int rope_dim = p.rope != nullptr ? p.rope_dim : 0;
  const uint16_t* from = p.q + (r * p.heads + first_head) * d;
#pragma unroll 4
  for (int i = threadIdx.x; i < kTileHeads * eights; i += blockDim.x) {
    const int h = i / eights, at = i % eights * 8;
    uint4 v = {0, 0, 0, 0};
    if (first_head + h < p.heads) v = *reinterpret_cast<const uint4*>(from + h * d + at);
    *reinterpret_cast<uint4*>(to + h * (d + kTilePad) + at) = v;
  }
  if (rope_dim == 0) return;
  __syncthreads();
  const float* table = p.rope + r * rope_dim;
  const int pairs = rope_dim / 2;
  for (int i = threadIdx.x; i < kTileHeads * pairs; i += blockDim.x) {
    const int h = i / pairs, k = i % pairs;
    uint16_t* x = to + h * (d + kTilePad) + d - rope_dim + 2 * k;
    const float cosine = table[2 * k], sine = table[2 * k + 1];
    const float re = bf16_value(x[0]), im = bf16_value(x[1]);
    const float turned = re * cosine - im * sine;
    x[0] = to_bf16(turned);
    x[1] = to_bf16(re * sine + im * cosine);
  }
}

// Chunks of 32 channels in a quarter: the scores' sums are added by quarters of the channels.
__host__ __device__ constexpr int quarter_chunks(int d) { return (d / kChunk + 3) / 4; }

// scores[head][key] = q . key * scale; -infinity where there is no key. warp: of the group. A
// quarter's chunks are added ascending, then the quarters.
__device__ inline void score_keys(const KeyTile& tile, const uint16_t* q, int d, float scale,
                                  int warp) {
  static_assert(kKeysOfWarp == 8, "a tile of the matrix unit");
  const int lane = lane_of(), g = lane >> 2, c = lane & 3;
  const int first = warp * kKeysOfWarp, quarter = quarter_chunks(d) * kChunk;
  const uint16_t* top = q + g * (d + kTilePad) + c * 8;
  const uint16_t* key = tile.keys + (first + g) * (d + kTilePad) + c * 8;
  float sum[4] = {};
  for (int from = 0; from < d; from += quarter) {
    float acc[4] = {};
#pragma unroll 4
    for (int at = from; at < min(d, from + quarter); at += kChunk) {
      const uint4 a0 = *reinterpret_cast<const uint4*>(top + at);
      const uint4 a1 = *reinterpret_cast<const uint4*>(top + 8 * (d + kTilePad) + at);
      add_chunk(acc, a0, a1, *reinterpret_cast<const uint4*>(key + at));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] += acc[i];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int k = first + c * 2 + (i & 1);
    tile.scores[(g + (i >> 1) * 8) * kTileKeys + k] =
        tile.kind[k] != 0 ? sum[i] * scale : -INFINITY;
  }
}

// The largest score of a head's block, in every lane.
__device__ inline float largest_score(const KeyTile& tile, int head) {
  const int lane = lane_of();
  float largest =
      fmaxf(tile.scores[head * kTileKeys + lane], tile.scores[head * kTileKeys + 32 + lane]);
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  return largest;
}
__device__ inline float running_maximum(float before, float largest) {
  return largest > before ? largest : before;
}

// P of a head's block under the maximum `now`, as bf16; returns the block's part of the
// denominator.
__device__ inline float weigh_head(const KeyTile& tile, int head, float now) {
  const int lane = lane_of();
  const float p0 = exp_near(tile.scores[head * kTileKeys + lane] - now);
  const float p1 = exp_near(tile.scores[head * kTileKeys + 32 + lane] - now);
  tile.weights[head * kWeightStride + lane] = to_bf16(p0);
  tile.weights[head * kWeightStride + 32 + lane] = to_bf16(p1);
  return sum_columns(p0 + p1);
}

// B operand of 16 keys x 8 channels from row-major keys.
__device__ inline void load_values(const uint16_t* at, uint32_t& b0, uint32_t& b1) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(b0), "=r"(b1)
               : "r"(address));
}

// P of the block as the left operand: heads g and g + 8.
struct TileWeights {
  uint32_t a[kTileKeys / 16][4];
};
__device__ inline TileWeights load_weights(const KeyTile& tile) {
  const int lane = lane_of(), g = lane >> 2, c = lane & 3;
  TileWeights w;
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    const uint16_t* at = tile.weights + g * kWeightStride + k * 16 + c * 2;
    w.a[k][0] = *reinterpret_cast<const uint32_t*>(at);
    w.a[k][1] = *reinterpret_cast<const uint32_t*>(at + 8 * kWeightStride);
    w.a[k][2] = *reinterpret_cast<const uint32_t*>(at + 8);
    w.a[k][3] = *reinterpret_cast<const uint32_t*>(at + 8 * kWeightStride + 8);
  }
  return w;
}

// P . keys over 8 channels: heads g, g + 8; channels + 2 (lane % 4) + {0, 1}.
__device__ inline void weigh_values(const KeyTile& tile, const TileWeights& w, int d, int channel,
                                    float (&out)[4]) {
  const int lane = lane_of();
  float half[2][4] = {};  // 32 keys each
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    uint32_t b0, b1;
    load_values(tile.keys + (k * 16 + (lane & 15)) * (d + kTilePad) + channel, b0, b1);
    mma_bf16(half[k / 2], w.a[k][0], w.a[k][1], w.a[k][2], w.a[k][3], b0, b1);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = half[0][i] + half[1][i];
}

// o = bf16(numerator / denominator) of two neighboring channels, the inverse rotation, bf16.
__device__ inline uint32_t finished_pair(const AttentionCoreParams& p, int64_t r, int channel,
                                         float first, float second, float denominator) {
  float re = round_bf16(first / denominator);
  float im = round_bf16(second / denominator);
  if (p.rope != nullptr && channel >= p.head_dim - p.rope_dim) {
    const float* table = p.rope + r * p.rope_dim + (channel - (p.head_dim - p.rope_dim));
    const float cosine = table[0], sine = -table[1];
    const float turned = re * cosine - im * sine;
    im = re * sine + im * cosine;
    re = turned;
  }
  return pack_bf16(re, im);
}

// Few rows: a cluster takes 16 heads of a row. Whether this GPU and these shapes allow it, and the
// launch.
bool attention_splits(const AttentionCoreParams& p, const CudaStream& stream);
void attention_split(const AttentionCoreParams& p, CudaStream& stream);
// Any number of rows, D a multiple of 32 up to kHeadDimMax.
void attention_rows(const AttentionCoreParams& p, CudaStream& stream);

}  // namespace tensorfold::cuda
