// See kernels/cuda/index_scores.h.
//
// Integer matrix units: 16 keys by eight columns, which are two heads of four rows, by 32 channels.
// A lane so gets the same two keys and one row in every product, and adds heads in order without
// asking its neighbours. Sums start at fp32's 1.5 * 2^23 taken as an integer, so that they are
// floats as they come. "Narrow" vectors, whose block scales lie within a factor of 8 (all but a
// few), are shifted to one scale: a head is then one integer sum, its scale part of the row's
// weight and the key's the last factor. Powers of two keep every rounding where it was, so both
// ways give equal bits. Bytes: 68 a key per 32 rows. Operations: heads x 128 x 2 a key and row.
#include "kernels/cuda/index_scores.h"

#include "kernels/cuda/rows.cuh"
#include "kernels/formats.h"

namespace tensorfold::cuda {
namespace {

constexpr int kQueryWarps = 4;
constexpr int kScoreWarps = 8;
constexpr int kScoreThreads = kScoreWarps * 32;
constexpr int kGroupRows = 4;   // rows of a product
constexpr int kBlockRows = 32;  // rows that share a block's keys
constexpr int kBlocks = kIndexDimMax / 32;
constexpr int kShiftMax = 3;              // 12 << 3 is a signed byte
constexpr int kExponentNear = 30;         // of a narrow vector's scale: nothing under- or overflows
constexpr uint32_t kUnits = 0x4B400000u;  // the bits of 1.5 * 2^23

constexpr int paired(int heads) { return (heads + 1) / 2 * 2; }

// Parts of a row's queries, by byte.
struct QueryParts {
  int scales, weights, folded, narrow;
  __host__ __device__ explicit QueryParts(int heads)
      : scales(paired(heads) * kIndexDimMax),
        weights(scales + paired(heads) * kBlocks * 4),
        folded(weights + paired(heads) * 4),
        narrow(folded + paired(heads) * 4) {}
};
// An odd number of 16 bytes: four rows then lie in other banks.
constexpr int64_t query_row_bytes(int heads) {
  return (int64_t{paired(heads)} * (kIndexDimMax + kBlocks * 4 + 12) / 16 | 1) * 16 + 32;
}

// Where channel k of a head lies among a row's codes: a lane's bytes of two blocks are 16 in a row,
// and the lanes of both heads of a pair read 128 bytes.
__device__ __forceinline__ int code_place(int head, int k) {
  const int block = k / 32, lane = k % 32 / 8;
  return head / 2 * 256 + block / 2 * 128 + head % 2 * 64 + lane * 16 + block % 2 * 8 + k % 8;
}

struct Narrow {
  bool yes;
  int shift[kBlocks];
};
// Of the scales' exponent bytes.
__device__ __forceinline__ Narrow narrow_of(const int (&e)[kBlocks]) {
  int least = e[0], most = e[0];
#pragma unroll
  for (int b = 1; b < kBlocks; ++b) {
    least = min(least, e[b]);
    most = max(most, e[b]);
  }
  Narrow n;
  n.yes = most - least <= kShiftMax && least >= 127 - kExponentNear && most <= 127 + kExponentNear;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) n.shift[b] = n.yes ? e[b] - least : 0;
  return n;
}

// A warp a head.
__global__ void __launch_bounds__(kQueryWarps * 32)
    index_queries_kernel(IndexSelectParams p, IndexQueries q) {
  __shared__ float rows[kQueryWarps][kIndexDimMax];
  const int64_t task = int64_t{blockIdx.x} * kQueryWarps + warp_of();  // row, head
  const int heads = paired(p.heads), lane = lane_of();
  if (task >= int64_t{p.rows} * heads) return;
  const int64_t r = task / heads;
  const int h = static_cast<int>(task % heads);
  const QueryParts parts(p.heads);
  std::byte* out = q.rows + r * q.row_bytes;
  float* row = rows[warp_of()];
  const bool real = h < p.heads;
  int e[kBlocks], value[kBlocks] = {};
  if (real) {
    const uint16_t* from = p.iq + (r * p.heads + h) * p.dim;
    for (int k = lane; k < p.dim; k += 32) row[k] = bf16_value(from[k]);
    warp_rotate(row, p.dim, p.rope_dim, p.rope + r * p.rope_dim, false);
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    e[b] = b == 0 ? 127 : e[0];  // blocks that are not there change nothing
    if (!real || b >= p.dim / 32) continue;
    uint8_t scale;
    value[b] = e2m1_twice(quantise_fp4_ue8m0_lanes(row[b * 32 + lane], scale));
    e[b] = scale;
  }
  const Narrow narrow = narrow_of(e);
  const float weight = real ? round_bf16(bf16_value(p.iw[r * p.heads + h]) * p.weight_scale) : 0.0f;
  const float size = fabsf(weight);
  const bool near = narrow.yes && (size == 0.0f || (size >= 0x1p-30f && size <= 0x1p30f));
  auto* scales = reinterpret_cast<float*>(out + parts.scales) + h * kBlocks;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    reinterpret_cast<int8_t*>(out)[code_place(h, b * 32 + lane)] =
        static_cast<int8_t>(value[b] * (1 << narrow.shift[b]));
    const float scale = ue8m0_value(static_cast<uint8_t>(e[b] - narrow.shift[b])) * 0.25f;
    if (lane == 0) scales[b] = real && b < p.dim / 32 ? scale : 0.0f;
    if (b == 0 && lane == 0) {
      reinterpret_cast<float*>(out + parts.weights)[h] = weight;
      reinterpret_cast<float*>(out + parts.folded)[h] = near ? weight * scale : 0.0f;
      reinterpret_cast<int*>(out + parts.narrow)[h] = near ? 1 : 0;
    }
  }
}

// Four codes of 4 bits -> four bytes of twice the value, shifted left. Magnitudes come from a byte
// table by permutation, signs are applied by (v ^ s) - s per byte.
__device__ __forceinline__ uint32_t widen_codes(uint32_t codes16, int shift) {
  const uint32_t magnitude = __byte_perm(0x03020100u, 0x0C080604u, codes16 & 0x7777u) << shift;
  const uint32_t sign = (codes16 & 8u) << 4 | (codes16 & 0x80u) << 8 | (codes16 & 0x800u) << 12 |
                        (codes16 & 0x8000u) << 16;
  const uint32_t mask = (sign >> 7) * 255u;  // 0xff in every negative byte
  return __vsub4(magnitude ^ mask, mask);
}

// 16 keys as the left operand, a[block]: keys g and g + 8, channels 8 t .. 8 t + 7 of the block.
struct KeyTile {
  uint32_t a[kBlocks][4];
  uint32_t exponents[2];  // four bytes: the scales of keys g and g + 8
};

// Key j into row `half` of the tile; true: narrow.
__device__ __forceinline__ bool load_key(const IndexSelectParams& p, const int32_t* table, int j,
                                         int half, KeyTile& key) {
  const int each = p.pool.entries_per_block, t = lane_of() & 3;
  const uint8_t* row = p.pool.base + table[j / each] * p.pool.block_bytes + p.pool.index_offset +
                       j % each * index_key_bytes(p.dim);
  const bool whole = p.dim == kIndexDimMax;  // keys are whole words
  uint32_t codes[kBlocks];
  int e[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    codes[b] = 0;
    e[b] = b == 0 ? 127 : e[0];
    if (whole) {
      codes[b] = *reinterpret_cast<const uint32_t*>(row + 16 * b + 4 * t);
      e[b] = row[64 + b];
    } else if (b < p.dim / 32) {
      for (int i = 0; i < 4; ++i) codes[b] |= uint32_t{row[16 * b + 4 * t + i]} << (8 * i);
      e[b] = row[p.dim / 2 + b];
    }
  }
  const Narrow narrow = narrow_of(e);
  key.exponents[half] = 0;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    key.a[b][half] = widen_codes(codes[b] & 0xffffu, narrow.shift[b]);
    key.a[b][half + 2] = widen_codes(codes[b] >> 16, narrow.shift[b]);
    key.exponents[half] |= static_cast<uint32_t>(e[b] - narrow.shift[b]) << (8 * b);
  }
  return narrow.yes;
}

__device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                       uint32_t b1, const int (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
}

__device__ __forceinline__ float units(int sum) {
  return __int_as_float(sum) - __uint_as_float(kUnits);
}
// Two values rounded to bf16.
template <bool kBf16>
__device__ __forceinline__ void round_two(float& a, float& b) {
  if constexpr (kBf16) {
    uint32_t two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(b), "f"(a));
    a = __uint_as_float(two << 16);
    b = __uint_as_float(two & 0xffff0000u);
  }
}
__device__ __forceinline__ float positive(float dot) { return dot < 0.0f ? 0.0f : dot; }

// sum + max(0, dot) * weight for two heads of two keys.
template <bool kBf16>
__device__ __forceinline__ void add_heads(float (&sums)[2], float (&dot)[4], const float2& weight) {
#pragma unroll
  for (int key = 0; key < 2; ++key) {
    float a = dot[2 * key], b = dot[2 * key + 1];
    round_two<kBf16>(a, b);
    a = positive(a) * weight.x;
    b = positive(b) * weight.y;
    round_two<kBf16>(a, b);
    sums[key] = (sums[key] + a) + b;
  }
}
__device__ __forceinline__ float key_scale(const KeyTile& key, int half, int block) {
  uint32_t e = key.exponents[half];
  asm volatile("" : "+r"(e));   // made anew each time: kept, they would take the registers
  e = e >> (8 * block) & 255u;  // ue8m0_value without branches
  const uint32_t bits = e == 0 ? 0x00400000u : e << 23;
  return __uint_as_float(e == 255u ? 0x7fc00000u : bits);
}

// What the lanes of a warp read of a group's queries, in shared memory: `column` as a column of
// the products, `row` as the row whose sums the lane has.
struct GroupView {
  const std::byte *column, *row;
  __device__ __forceinline__ GroupView(const std::byte* group, int row_bytes) {
    const int g = lane_of() >> 2, t = lane_of() & 3;
    column = group + (g >> 1) * row_bytes + (g & 1) * 64 + t * 16;
    row = group + t * row_bytes;
  }
};

// sums[tile][half] of the lane's keys and row, heads ascending.
template <int kTiles, bool kBf16>
__device__ __forceinline__ void score_narrow(const KeyTile (&keys)[kTiles], const GroupView& q,
                                             const QueryParts& parts, int pairs,
                                             float (&sums)[kTiles][2]) {
  const int none[4] = {static_cast<int>(kUnits), static_cast<int>(kUnits), static_cast<int>(kUnits),
                       static_cast<int>(kUnits)};
#pragma unroll 1
  for (int pair = 0; pair < pairs; ++pair) {
    const uint4 low = *reinterpret_cast<const uint4*>(q.column + pair * 256);
    const uint4 high = *reinterpret_cast<const uint4*>(q.column + pair * 256 + 128);
    const float2 w = *reinterpret_cast<const float2*>(q.row + parts.folded + pair * 8);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      int d[4];
      mma_s8(d, keys[m].a[0], low.x, low.y, none);
      mma_s8(d, keys[m].a[1], low.z, low.w, d);
      mma_s8(d, keys[m].a[2], high.x, high.y, d);
      mma_s8(d, keys[m].a[3], high.z, high.w, d);
      float dot[4] = {units(d[0]), units(d[1]), units(d[2]), units(d[3])};
      add_heads<kBf16>(sums[m], dot, w);
    }
  }
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      sums[m][half] = sums[m][half] * key_scale(keys[m], half, 0);
}

// The same for any scales: blocks apart.
template <int kTiles, bool kBf16>
__device__ __forceinline__ void score_any(const KeyTile (&keys)[kTiles], const GroupView& q,
                                          const QueryParts& parts, int pairs,
                                          float (&sums)[kTiles][2]) {
  const int none[4] = {static_cast<int>(kUnits), static_cast<int>(kUnits), static_cast<int>(kUnits),
                       static_cast<int>(kUnits)};
#pragma unroll 1
  for (int pair = 0; pair < pairs; ++pair) {
    const uint4 low = *reinterpret_cast<const uint4*>(q.column + pair * 256);
    const uint4 high = *reinterpret_cast<const uint4*>(q.column + pair * 256 + 128);
    const float2 w = *reinterpret_cast<const float2*>(q.row + parts.weights + pair * 8);
    const auto* scales = reinterpret_cast<const float4*>(q.row + parts.scales + pair * 32);
    const float4 first = scales[0], second = scales[1];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      float dot[4] = {0, 0, 0, 0};
      const auto block = [&](int b, uint32_t b0, uint32_t b1, float s0, float s1) {
        int d[4];
        mma_s8(d, keys[m].a[b], b0, b1, none);
        const float g = key_scale(keys[m], 0, b), g8 = key_scale(keys[m], 1, b);
        dot[0] += units(d[0]) * (s0 * g);
        dot[1] += units(d[1]) * (s1 * g);
        dot[2] += units(d[2]) * (s0 * g8);
        dot[3] += units(d[3]) * (s1 * g8);
      };
      block(0, low.x, low.y, first.x, second.x);
      block(1, low.z, low.w, first.y, second.y);
      block(2, high.x, high.y, first.z, second.z);
      block(3, high.z, high.w, first.w, second.w);
      add_heads<kBf16>(sums[m], dot, w);
      // One tile after the other, for the registers' sake.
      asm volatile("" : "+f"(sums[m][0]), "+f"(sums[m][1]));
    }
  }
}

__device__ __forceinline__ int visible_at(const IndexSelectParams& p, const AttentionSlice& s,
                                          int r) {
  return static_cast<int>((s.first_position + (r - s.first_row) + 1) / p.pool.ratio);
}
__device__ __forceinline__ bool needs_scores(const IndexSelectParams& p, int visible) {
  return p.scores != nullptr || visible > p.topk ||
         (p.builds_candidates && visible > int64_t{p.candidate_blocks} * p.candidate_block_size);
}

__device__ __forceinline__ void stage_rows(const std::byte* from, uint32_t to, int bytes) {
  for (int at = static_cast<int>(threadIdx.x) * 16; at < bytes; at += kScoreThreads * 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + static_cast<uint32_t>(at)),
                 "l"(from + at));
}

// All that a warp's lanes know of the rows [first, end) of one slice.
struct Run {
  const AttentionSlice* slice;
  int first, end;
};

// Whether every head of the group's rows [0, rows) is narrow.
__device__ __forceinline__ bool rows_narrow(const std::byte* group, int row_bytes,
                                            const QueryParts& parts, int heads, int rows) {
  bool narrow = true;
  for (int i = 0; i < rows; ++i)
    for (int h = lane_of(); h < heads; h += 32)
      narrow = narrow && reinterpret_cast<const int*>(group + i * row_bytes + parts.narrow)[h] != 0;
  return __all_sync(~0u, narrow);
}

template <int kTiles, bool kBf16>
__global__ void __launch_bounds__(kScoreThreads, 2)
    index_scores_kernel(const __grid_constant__ IndexSelectParams p, IndexQueries q, int first_row,
                        int rows, float* scores, int64_t stride) {
  extern __shared__ __align__(16) std::byte shared[];  // two groups of rows
  constexpr int kWarpKeys = 16 * kTiles;
  const QueryParts parts(p.heads);
  const int lane = lane_of(), g = lane >> 2, t = lane & 3;
  const int row_bytes = static_cast<int>(q.row_bytes), group_bytes = kGroupRows * row_bytes;
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int block_key = static_cast<int>(blockIdx.x) * (kScoreWarps * kWarpKeys);
  const int key = block_key + warp_of() * kWarpKeys;
  const int begin = first_row + static_cast<int>(blockIdx.y) * kBlockRows;
  const int end = min(first_row + rows, begin + kBlockRows);
  for (Run run{nullptr, begin, 0}; run.first < end; run.first = run.end) {
    run.slice = &p.slice[p.row_slice[run.first]];
    run.end = min(end, run.slice->first_row + run.slice->rows);
    const int limit = visible_at(p, *run.slice, run.end - 1);
    if (block_key >= limit) continue;
    KeyTile keys[kTiles];
    bool keys_narrow = true;
    if (key < limit)
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          keys_narrow &= load_key(p, run.slice->block_table,
                                  min(key + 16 * m + 8 * half + g, limit - 1), half, keys[m]);
    keys_narrow = __all_sync(~0u, keys_narrow);
    const auto stage = [&](int r, int buffer) {
      if (r < run.end)
        stage_rows(q.rows + r * q.row_bytes, base + static_cast<uint32_t>(buffer * group_bytes),
                   min(kGroupRows, run.end - r) * row_bytes);
      asm volatile("cp.async.commit_group;");
    };
    __syncthreads();
    stage(run.first, 0);
    int buffer = 0;
    for (int r = run.first; r < run.end; r += kGroupRows, buffer ^= 1) {
      stage(r + kGroupRows, buffer ^ 1);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      __syncthreads();
      const int here = min(kGroupRows, run.end - r);
      const int visible = visible_at(p, *run.slice, r + here - 1);
      if (key < visible && needs_scores(p, visible)) {
        const std::byte* group = shared + buffer * group_bytes;
        const GroupView view(group, row_bytes);
        float sums[kTiles][2] = {};
        if (keys_narrow && rows_narrow(group, row_bytes, parts, paired(p.heads), here))
          score_narrow<kTiles, kBf16>(keys, view, parts, paired(p.heads) / 2, sums);
        else
          score_any<kTiles, kBf16>(keys, view, parts, paired(p.heads) / 2, sums);
        const int mine = t < here ? visible_at(p, *run.slice, r + t) : 0;
        float* to = scores + int64_t{r + t - first_row} * stride;
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int j = key + 16 * m + 8 * half + g;
            if (j < mine) to[j] = kBf16 ? round_bf16(sums[m][half]) : sums[m][half];
          }
      }
      __syncthreads();
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
}

template <int kTiles, bool kBf16>
void launch(const IndexSelectParams& p, const IndexQueries& q, int first, int rows, float* scores,
            int64_t stride, CudaStream& stream) {
  const int64_t bytes = 2 * kGroupRows * q.row_bytes;
  const dim3 grid(blocks_of(p.entries_max, kScoreWarps * 16 * kTiles), blocks_of(rows, kBlockRows));
  allow_shared(stream, index_scores_kernel<kTiles, kBf16>, bytes);
  index_scores_kernel<kTiles, kBf16>
      <<<grid, kScoreThreads, bytes, stream.handle()>>>(p, q, first, rows, scores, stride);
}

}  // namespace

int64_t index_queries_bytes(int rows, int heads, int) {
  return Pieces::padded(rows * query_row_bytes(heads));
}

IndexQueries take_queries(Pieces& pieces, int rows, int heads, int) {
  IndexQueries q;
  q.row_bytes = query_row_bytes(heads);
  q.rows = pieces.take<std::byte>(rows * q.row_bytes);
  return q;
}

void index_queries(const IndexSelectParams& p, const IndexQueries& q, CudaStream& stream) {
  const int blocks = blocks_of(int64_t{p.rows} * paired(p.heads), kQueryWarps);
  index_queries_kernel<<<blocks, kQueryWarps * 32, 0, stream.handle()>>>(p, q);
  stream.launched("index_queries", p.rows, p.heads, p.dim);
}

void index_scores(const IndexSelectParams& p, const IndexQueries& q, int first, int rows,
                  float* scores, int64_t stride, CudaStream& stream) {
  if (p.entries_max == 0) return;
  // Few keys and rows: more, smaller blocks.
  constexpr int64_t kLargeKeys = int64_t{1} << 16;  // keys x 32 rows from which on tiles are large
  const bool large = p.entries_max * blocks_of(rows, kBlockRows) >= kLargeKeys;
  if (large && p.bf16_scores)
    launch<2, true>(p, q, first, rows, scores, stride, stream);
  else if (large)
    launch<2, false>(p, q, first, rows, scores, stride, stream);
  else if (p.bf16_scores)
    launch<1, true>(p, q, first, rows, scores, stride, stream);
  else
    launch<1, false>(p, q, first, rows, scores, stride, stream);
  stream.launched("index_scores", rows, p.entries_max, p.heads);
}

}  // namespace tensorfold::cuda
