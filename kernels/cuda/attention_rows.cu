// Attention of many rows (kernels/attention_core.h): a thread block of eight warps takes up to 32
// heads of one row and walks its blocks of 64 keys.
//
// A key is read and unpacked once for all heads, to bf16 in shared memory. Scores: warp w takes a
// quarter of the channels (w mod 4; its part of the queries stays in registers) and half of the
// keys (w / 4); the quarters are added in shared memory, ascending. Weights: four heads a warp.
// Values: an eighth of the channels a warp, sums in registers. The order of every sum is that of
// attention_tile.cuh, so few rows and many give the same bits.
// Bytes: 278 KB of keys a row at 640 keys of 512 channels, from the L2 mostly; products 42 MFLOP.
//
// Shared memory has no padding (98 KB at 512 channels): the 16-byte pieces of a row are permuted so
// that neither the scores' loads (two rows, four pieces) nor ldmatrix (eight rows, one piece) meet
// in a bank.
#include "engine/base/check.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/launch.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kHeads = 32;
constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kKeys = kTileKeys;
constexpr int kQuarters = 4;
constexpr int kKeyTiles = kKeys / 2 / 8;      // 8-key tiles of a warp in scores
constexpr int kSlotsOfWarp = kKeys / kWarps;  // keys that a warp fetches

constexpr int kEntryBytes = 288;  // of 512 channels, the only width whose entries are staged

// C: chunks of 32 channels in a quarter. Rows in shared memory have 128 C channels, zeros behind D.
template <int C>
struct Layout {
  static constexpr int kChannels = 128 * C;
  static constexpr int kRowBytes = kChannels * 2;
  static constexpr int kKeysBytes = kKeys * kRowBytes;  // also the queries, at first
  static constexpr int kScoresBytes = kQuarters * kHeads * kKeys * 4;
  static constexpr int kFactorsAt = kKeysBytes + kScoresBytes;  // [32] alpha or denominator
  static constexpr int kStateAt = kFactorsAt + kHeads * 4;      // [32] float2 maximum, denominator
  static constexpr int kPresentAt = kStateAt + kHeads * 8;      // [64] bytes
  static constexpr int kBytes = kPresentAt + kKeys;
  static constexpr int kStagedAt = kBytes;  // [64] packed entries of the next block of keys
  static constexpr int kStagedBytes = kStagedAt + kKeys * kEntryBytes;
  static constexpr int kValueTiles = 2 * C;  // 8-channel tiles of a warp
};
static_assert(Layout<kHeadDimMax / 128>::kBytes <= kSharedBlockBytes);

// The lane, as something new each time: addresses made of it are not kept in registers over the
// whole walk.
__device__ __forceinline__ int fresh_lane() {
  int lane = lane_of();
  asm volatile("" : "+r"(lane));
  return lane;
}

// Byte offset of 16-byte piece `piece` of row `row`.
template <int C>
__device__ __forceinline__ int piece_at(int row, int piece) {
  const int turn = ((row & 1) << 2) | ((row >> 1) & 3);
  return row * Layout<C>::kRowBytes + ((piece ^ turn) << 4);
}

// Scores of a quarter: [head][key], keys permuted by head.
__device__ __forceinline__ int score_at(int quarter, int head, int key) {
  return (quarter * kHeads + head) * kKeys + (key ^ ((head & 3) << 3));
}
// P of a head's block lies at the start of the head's row of the first quarter's scores.
__device__ __forceinline__ int weight_at(int head, int key) {  // in bytes
  return head * kKeys * 4 + (((key >> 3) ^ (head & 7)) << 4) + (key & 7) * 2;
}

__device__ __forceinline__ void load_matrices(const void* at, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(at))));
}
__device__ __forceinline__ void load_matrices_turned(const void* at, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(at))));
}

// ---------------------------------------------------------------- queries
// Heads [first_head, + 32) of row r, rotated, into the keys' place; zeros where there is none.
template <int C>
__device__ void stage_queries(const AttentionCoreParams& p, int64_t r, int first_head,
                              std::byte* shared) {
  const int d = p.head_dim;
  const int rope_from = p.rope != nullptr ? d - p.rope_dim : d;
  const uint16_t* from = p.q + (r * p.heads + first_head) * d;
  const float* table = p.rope + r * p.rope_dim;
  for (int i = threadIdx.x; i < kHeads * 16 * C; i += kThreads) {
    const int h = i / (16 * C), piece = i % (16 * C), channel = piece * 8;
    uint4 v = {0, 0, 0, 0};
    if (first_head + h < p.heads && channel < d)
      v = *reinterpret_cast<const uint4*>(from + h * d + channel);
    if (channel + 8 > rope_from && channel < d) {
      uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int at = channel + 2 * k - rope_from;
        if (at < 0) continue;
        const float cosine = table[at], sine = table[at + 1];
        const float re = bf16_low(w[k]), im = bf16_high(w[k]);
        w[k] = pack_bf16(re * cosine - im * sine, re * sine + im * cosine);
      }
      v = make_uint4(w[0], w[1], w[2], w[3]);
    }
    *reinterpret_cast<uint4*>(shared + piece_at<C>(h, piece)) = v;
  }
}

// A warp's quarter of the queries: [16 heads][chunk] as left operands of two products.
template <int C>
struct Queries {
  uint4 top[2][C], bottom[2][C];
  __device__ void load(const std::byte* shared, int quarter) {
    const int g = lane_of() >> 2, c = lane_of() & 3;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int k = 0; k < C; ++k) {
        const int piece = (quarter * C + k) * 4 + c;
        top[m][k] = *reinterpret_cast<const uint4*>(shared + piece_at<C>(m * 16 + g, piece));
        bottom[m][k] = *reinterpret_cast<const uint4*>(shared + piece_at<C>(m * 16 + g + 8, piece));
      }
  }
};

// ---------------------------------------------------------------- keys
// Where the key of a slot lies.
struct KeyPlace {
  const uint8_t* row = nullptr;
  int kind = 0;  // 0 none, 1 staged bf16 row, 2 packed entry
};
__device__ inline KeyPlace place_of(const AttentionCoreParams& p, const RowKeys& k, int slot) {
  KeyPlace at;
  if (slot < k.window_slots) {
    const int64_t staged = k.list != nullptr ? k.list[slot] : k.staged + slot;
    if (staged < 0) return at;
    at.row = reinterpret_cast<const uint8_t*>(p.staged + staged * p.head_dim);
    at.kind = 1;
  } else if (slot - k.window_slots < k.entries) {
    const int64_t entry = k.selected[slot - k.window_slots];
    if (entry < 0) return at;
    const int64_t block = k.slice->block_table[entry / p.pool.entries_per_block];
    at.row = p.pool.base + block * p.pool.block_bytes + p.pool.main_offset +
             entry % p.pool.entries_per_block * main_entry_bytes(p.head_dim);
    at.kind = 2;
  }
  return at;
}

// The place of key `lane % 8` of the warp's keys from slot `first` on.
__device__ __forceinline__ KeyPlace place_of_lane(const AttentionCoreParams& p, const RowKeys& k,
                                                  int first) {
  return place_of(p, k, first + warp_of() * kSlotsOfWarp + (lane_of() & (kSlotsOfWarp - 1)));
}
__device__ __forceinline__ const uint8_t* row_of(const KeyPlace& mine, int key) {
  return reinterpret_cast<const uint8_t*>(
      __shfl_sync(~0u, reinterpret_cast<unsigned long long>(mine.row), key));
}

// Packed entries among the warp's keys on their way into shared memory, 16 bytes at a time.
template <int C>
__device__ void stage_entries(const KeyPlace& mine, std::byte* shared) {
  constexpr int kPieces = kEntryBytes / 16, kAll = kSlotsOfWarp * kPieces;
  const int lane = lane_of();
#pragma unroll
  for (int i = 0; i < (kAll + 31) / 32; ++i) {
    const int piece = i * 32 + lane, key = min(piece / kPieces, kSlotsOfWarp - 1);
    const uint8_t* row = row_of(mine, key);
    const int kind = __shfl_sync(~0u, mine.kind, key);
    if (piece >= kAll || kind != 2) continue;
    const int at = piece % kPieces * 16;
    copy_piece(shared + Layout<C>::kStagedAt + (warp_of() * kSlotsOfWarp + key) * kEntryBytes + at,
               row + at);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// The warp's keys of a block as bf16. A lane takes 16 channels of each.
template <int C, bool kStaged>
__device__ void fetch_keys(const AttentionCoreParams& p, const KeyPlace& mine, std::byte* shared) {
  const int lane = fresh_lane(), warp = warp_of(), d = p.head_dim;
  if (lane < kSlotsOfWarp)
    reinterpret_cast<uint8_t*>(shared)[Layout<C>::kPresentAt + warp * kSlotsOfWarp + lane] =
        mine.kind != 0 ? 1 : 0;
  const bool inside = lane < d / 16;
  constexpr int kSlotsAtOnce = kStaged || C == 3 ? 2 : 4;  // registers
  if (kStaged) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
  }
#pragma unroll
  for (int batch = 0; batch < kSlotsOfWarp; batch += kSlotsAtOnce) {
    KeyPiece v[kSlotsAtOnce];
    int kind[kSlotsAtOnce];
#pragma unroll
    for (int i = 0; i < kSlotsAtOnce; ++i) {
      const uint8_t* row = row_of(mine, batch + i);
      kind[i] = __shfl_sync(~0u, mine.kind, batch + i);
      v[i] = {};
      if (kStaged && kind[i] == 2) {
        const auto* entry = reinterpret_cast<const uint8_t*>(shared) + Layout<C>::kStagedAt +
                            (warp * kSlotsOfWarp + batch + i) * kEntryBytes;
        const uint2 codes = *reinterpret_cast<const uint2*>(entry + lane * 8);
        v[i].a = make_uint4(codes.x, codes.y, entry[d / 2 + lane], 0);
      } else if (inside) {
        v[i] = load_piece(row, kind[i], lane, d);
      }
    }
#pragma unroll
    for (int i = 0; i < kSlotsAtOnce; ++i) {
      widen_piece(kind[i], v[i]);
      const int key = warp * kSlotsOfWarp + batch + i;
      if (lane >= 8 * C) continue;
      // Half of the lanes store their second piece first: eight lanes never meet in a bank.
      const bool turned = (lane & 4) != 0;
      *reinterpret_cast<uint4*>(shared + piece_at<C>(key, 2 * lane + (turned ? 1 : 0))) =
          turned ? v[i].b : v[i].a;
      *reinterpret_cast<uint4*>(shared + piece_at<C>(key, 2 * lane + (turned ? 0 : 1))) =
          turned ? v[i].a : v[i].b;
    }
  }
}

// ---------------------------------------------------------------- scores, weights, values
// One quarter of the channels times 32 heads and 32 keys.
template <int C>
__device__ void score_quarter(const Queries<C>& q, std::byte* shared, int quarter, int half) {
  const int lane = fresh_lane(), g = lane >> 2, c = lane & 3;
  auto* scores = reinterpret_cast<float*>(shared + Layout<C>::kKeysBytes);
#pragma unroll 1
  for (int n = 0; n < kKeyTiles; ++n) {
    const int first = half * (kKeys / 2) + n * 8;
    float acc[2][4] = {};
#pragma unroll
    for (int k = 0; k < C; ++k) {
      const uint4 key = *reinterpret_cast<const uint4*>(
          shared + piece_at<C>(first + g, (quarter * C + k) * 4 + c));
#pragma unroll
      for (int m = 0; m < 2; ++m) add_chunk(acc[m], q.top[m][k], q.bottom[m][k], key);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half_rows = 0; half_rows < 2; ++half_rows)
        *reinterpret_cast<float2*>(scores +
                                   score_at(quarter, m * 16 + half_rows * 8 + g, first + 2 * c)) =
            make_float2(acc[m][2 * half_rows], acc[m][2 * half_rows + 1]);
  }
}

// Running maximum, P and denominator of the warp's four heads.
template <int C>
__device__ void weigh_heads(std::byte* shared, float scale) {
  const int lane = fresh_lane();
  auto* scores = reinterpret_cast<const float*>(shared + Layout<C>::kKeysBytes);
  auto* state = reinterpret_cast<float2*>(shared + Layout<C>::kStateAt);
  const auto* present = reinterpret_cast<const uint8_t*>(shared) + Layout<C>::kPresentAt;
  const bool there0 = present[lane] != 0, there1 = present[32 + lane] != 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int h = warp_of() * 4 + i;
    float s0 = scores[score_at(0, h, lane)], s1 = scores[score_at(0, h, 32 + lane)];
#pragma unroll
    for (int quarter = 1; quarter < kQuarters; ++quarter) {
      s0 += scores[score_at(quarter, h, lane)];
      s1 += scores[score_at(quarter, h, 32 + lane)];
    }
    s0 = there0 ? s0 * scale : -INFINITY;
    s1 = there1 ? s1 * scale : -INFINITY;
    float largest = fmaxf(s0, s1);
    for (int step = 16; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    const float2 before = state[h];
    const float now = running_maximum(before.x, largest);
    const float alpha = exp_near(before.x - now);
    const float p0 = exp_near(s0 - now), p1 = exp_near(s1 - now);
    const float denominator = before.y * alpha + sum_columns(p0 + p1);
    __syncwarp();  // every lane has read the head's scores and state
    auto* weights = shared + Layout<C>::kKeysBytes;
    *reinterpret_cast<uint16_t*>(weights + weight_at(h, lane)) = to_bf16(p0);
    *reinterpret_cast<uint16_t*>(weights + weight_at(h, 32 + lane)) = to_bf16(p1);
    if (lane == 0) {
      reinterpret_cast<float*>(shared + Layout<C>::kFactorsAt)[h] = alpha;
      state[h] = make_float2(now, denominator);
    }
  }
}

template <int C>
using Sums = float[2][Layout<C>::kValueTiles][4];  // [16 heads][8 channels], as a product leaves it

// sums = sums * alpha + P . keys over the warp's channels.
template <int C>
__device__ void weigh_values(const std::byte* shared, Sums<C>& sums) {
  const int lane = fresh_lane(), g = lane >> 2;
  const auto* alpha = reinterpret_cast<const float*>(shared + Layout<C>::kFactorsAt);
  const std::byte* weights = shared + Layout<C>::kKeysBytes;
  uint32_t w[2][kKeys / 16][4];
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
      load_matrices(weights + weight_at(m * 16 + (lane & 15), k * 16 + (lane >> 4) * 8), w[m][k]);
  const int first_piece = warp_of() * Layout<C>::kValueTiles;
#pragma unroll
  for (int t = 0; t < Layout<C>::kValueTiles; ++t) {
    float part[2][2][4] = {};  // 32 keys each
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t b[4];  // keys 0-7, 8-15, 16-23, 24-31
      load_matrices_turned(shared + piece_at<C>(half * 32 + lane, first_piece + t), b);
#pragma unroll
      for (int k = 0; k < 2; ++k)
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint32_t(&a)[4] = w[m][half * 2 + k];
          mma_bf16(part[half][m], a[0], a[1], a[2], a[3], b[2 * k], b[2 * k + 1]);
        }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float top = alpha[m * 16 + g], bottom = alpha[m * 16 + 8 + g];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[m][t][i] = sums[m][t][i] * (i < 2 ? top : bottom) + (part[0][m][i] + part[1][m][i]);
    }
  }
}

template <int C>
__device__ void store_heads(const AttentionCoreParams& p, int64_t r, int first_head,
                            const std::byte* shared, const Sums<C>& sums) {
  const int g = lane_of() >> 2, c = lane_of() & 3;
  const auto* denominator = reinterpret_cast<const float*>(shared + Layout<C>::kFactorsAt);
#pragma unroll
  for (int t = 0; t < Layout<C>::kValueTiles; ++t) {
    const int channel = (warp_of() * Layout<C>::kValueTiles + t) * 8 + 2 * c;
    if (channel >= p.head_dim) continue;
#pragma unroll
    for (int half = 0; half < 4; ++half) {
      const int h = half * 8 + g;
      if (first_head + h >= p.heads) continue;
      const float* pair = &sums[half / 2][t][half % 2 * 2];
      *reinterpret_cast<uint32_t*>(p.out + (r * p.heads + first_head + h) * p.head_dim + channel) =
          finished_pair(p, r, channel, pair[0], pair[1], denominator[h]);
    }
  }
}

// kStaged: the packed entries of the next block of keys are copied while this one is worked on, and
// the places of those after it are looked up.
template <int C, bool kStaged>
__global__ void __launch_bounds__(kThreads, 1) attention_rows_kernel(AttentionCoreParams p) {
  extern __shared__ __align__(16) std::byte shared[];
  const int64_t r = blockIdx.x;
  const int first_head = blockIdx.y * kHeads;
  const float scale = 1.0f / sqrtf(static_cast<float>(p.head_dim));
  begin_programmatic();
  const RowKeys keys = row_keys(p, r);
  stage_queries<C>(p, r, first_head, shared);
  __syncthreads();
  const int quarter = warp_of() & 3, half = warp_of() >> 2;
  Queries<C> q;
  q.load(shared, quarter);
  Sums<C> sums = {};
  auto* state = reinterpret_cast<float2*>(shared + Layout<C>::kStateAt);
  if (threadIdx.x < kHeads) state[threadIdx.x] = make_float2(kNoMaximum, 0.0f);
  const int slots = keys.window_slots + keys.entries;
  KeyPlace next;
  if (kStaged) {
    next = place_of_lane(p, keys, 0);
    stage_entries<C>(next, shared);
  }
  for (int first = 0; first < slots; first += kKeys) {
    const KeyPlace mine = kStaged ? next : place_of_lane(p, keys, first);
    __syncthreads();
    if (kStaged) next = place_of_lane(p, keys, first + kKeys);
    fetch_keys<C, kStaged>(p, mine, shared);
    if (kStaged) {
      __syncwarp();
      stage_entries<C>(next, shared);
    }
    __syncthreads();
    score_quarter<C>(q, shared, quarter, half);
    __syncthreads();
    weigh_heads<C>(shared, scale);
    __syncthreads();
    weigh_values<C>(shared, sums);
  }
  __syncthreads();
  if (threadIdx.x < kHeads && first_head + static_cast<int>(threadIdx.x) < p.heads) {
    const float2 last = state[threadIdx.x];
    reinterpret_cast<float*>(shared + Layout<C>::kFactorsAt)[threadIdx.x] =
        last.y + exp_near(p.sink[first_head + threadIdx.x] - last.x);
  }
  __syncthreads();
  store_heads<C>(p, r, first_head, shared, sums);
}

template <int C, bool kStaged>
void launch(const AttentionCoreParams& p, CudaStream& s) {
  constexpr int kBytes = kStaged ? Layout<C>::kStagedBytes : Layout<C>::kBytes;
  allow_shared(s, attention_rows_kernel<C, kStaged>, kBytes);
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(blocks_of(p.heads, kHeads)));
  launch_programmatic(s, attention_rows_kernel<C, kStaged>, grid, kThreads, kBytes, 1, p);
}

// Whether entries may be staged: of 512 channels, and whole pieces of 16 bytes.
bool stages_entries(const AttentionCoreParams& p, const CudaStream& s) {
  return entries_in_pieces(p) && Layout<kHeadDimMax / 128>::kStagedBytes <= s.shared_bytes_max();
}

}  // namespace

void attention_rows(const AttentionCoreParams& p, CudaStream& s) {
  switch (quarter_chunks(p.head_dim)) {
    case 1:
      launch<1, false>(p, s);
      break;
    case 2:
      launch<2, false>(p, s);
      break;
    case 3:
      launch<3, false>(p, s);
      break;
    default:
      stages_entries(p, s) ? launch<4, true>(p, s) : launch<4, false>(p, s);
  }
  s.launched("attention_rows", p.rows, p.heads, p.head_dim);
}

void attention_core(const AttentionCoreParams& p, Stream& stream) {
  TF_CHECK_EQ(p.head_dim % 32, 0);
  TF_CHECK_LE(p.head_dim, kHeadDimMax);
  if (p.rows == 0) return;
  CudaStream& s = cuda_stream(stream);
  if (attention_splits(p, s))
    attention_split(p, s);
  else
    attention_rows(p, s);
}

}  // namespace tensorfold::cuda
