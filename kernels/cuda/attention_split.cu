// Attention of few rows (kernels/attention_core.h): a cluster takes 16 heads of one row, each of
// its thread blocks two blocks of 64 keys, at the same time (eight warps each).
//
// The running maximum, the weights under it and each key block's products do not depend on one
// another once every block's own maximum is known: those are exchanged first. Then the blocks'
// parts are added in the order in which attention_rows.cu adds them, so the bits are the same.
// Bytes: as there; the parts (32 KB a key block) pass through distributed shared memory.
#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/launch.cuh"

namespace tensorfold::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kGroups = 2;  // key blocks of a thread block
constexpr int kThreads = kGroups * kTileThreads;
constexpr int kClusterMax = 8;
constexpr int kBlocksMax = kClusterMax * kGroups;
constexpr int kHeadsOfWarp = kTileHeads / kTileWarps;
constexpr int kSplitRowsMax = 64;  // more rows fill the GPU without it

// Behind the two tiles and the queries.
struct Exchange {
  float largest[kGroups][kTileHeads];  // of this thread block's key blocks; read by the others
  float alpha[kGroups][kTileHeads];
  float sum[kGroups][kTileHeads];
  float all_largest[kBlocksMax][kTileHeads];  // of the row's
  float all_alpha[kBlocksMax][kTileHeads];
  float all_sum[kBlocksMax][kTileHeads];
  float denominator[kTileHeads];
};

constexpr int64_t queries_at(int d) { return kGroups * key_tile_bytes(d); }
constexpr int64_t exchange_at(int d) { return queries_at(d) + kTileHeads * (d + kTilePad) * 2; }
constexpr int64_t shared_bytes(int d) {
  return exchange_at(d) + static_cast<int64_t>(sizeof(Exchange));
}

// A packed entry lies at the end of its key's row until it is widened.
constexpr int kEntryBytes = static_cast<int>(main_entry_bytes(kHeadDimMax));
constexpr int kEntryAt = (kHeadDimMax + kTilePad) * 2 - kEntryBytes;
static_assert(kEntryAt % 16 == 0 && kEntryBytes % 16 == 0 && kHeadDimMax / 16 == 32);

// Loops stay loops from here on, as far as they can: code that runs once is fetched as it runs, at
// about five clocks an instruction.

// The warp's keys on their way into shared memory: staged rows, packed entries, or zeros.
__device__ __forceinline__ void copy_keys(const KeyTile& tile, int warp) {
  const int lane = lane_of();
#pragma unroll 2
  for (int i = 0; i < kKeysOfWarp; ++i) {
    const int key = warp * kKeysOfWarp + i, kind = tile.kind[key];
    const auto* from = reinterpret_cast<const uint8_t*>(tile.row[key]) + lane * 16;
    auto* to = reinterpret_cast<std::byte*>(tile.keys + key * (kHeadDimMax + kTilePad));
    if (kind == 2) {
      if (lane < kEntryBytes / 16) copy_piece(to + kEntryAt + lane * 16, from);
    } else if (kind == 1) {
      copy_piece(to + lane * 16, from);
      copy_piece(to + 512 + lane * 16, from + 512);
    } else {
      reinterpret_cast<uint4*>(to)[lane] = make_uint4(0, 0, 0, 0);
      reinterpret_cast<uint4*>(to)[32 + lane] = make_uint4(0, 0, 0, 0);
    }
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// What copy_keys() began, as bf16. A lane takes 16 channels of each entry.
__device__ __forceinline__ void widen_keys(const KeyTile& tile, int warp) {
  const int lane = lane_of();
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncwarp();
#pragma unroll 2
  for (int i = 0; i < kKeysOfWarp; ++i) {
    const int key = warp * kKeysOfWarp + i;
    if (tile.kind[key] != 2) continue;
    auto* row = reinterpret_cast<std::byte*>(tile.keys + key * (kHeadDimMax + kTilePad));
    KeyPiece v;
    const uint2 codes = reinterpret_cast<const uint2*>(row + kEntryAt)[lane];
    v.a.x = codes.x;
    v.a.y = codes.y;
    v.a.z = reinterpret_cast<const uint8_t*>(row)[kEntryAt + kHeadDimMax / 2 + lane];
    __syncwarp();  // all of it is in registers
    widen_piece(2, v);
    auto* to = reinterpret_cast<uint4*>(row + lane * 32);
    to[0] = v.a;
    to[1] = v.b;
  }
}
// The same for any D, a piece at a time.
__device__ __forceinline__ void gather_keys(const KeyTile& tile, int d, int t) {
  const int parts = d / 16;
#pragma unroll 1
  for (int i = t; i < kTileKeys * parts; i += kTileThreads)
    store_piece(tile, i / parts, i % parts, d, load_piece(tile, i / parts, i % parts, d));
}

// What every thread block has in `mine`, of all the row's key blocks, into `all`.
__device__ void collect(const cg::cluster_group& cluster, float (*mine)[kTileHeads],
                        float (*all)[kTileHeads], int blocks) {
  for (int i = threadIdx.x; i < blocks * kTileHeads; i += kThreads) {
    const int b = i / kTileHeads, h = i % kTileHeads;
    all[b][h] = cluster.map_shared_rank(&mine[b % kGroups][h], b / kGroups)[0];
  }
}

// The maximum after the first `blocks` key blocks.
__device__ float maximum_after(const Exchange& x, int blocks, int head) {
  float m = kNoMaximum;
  for (int b = 0; b < blocks; ++b) m = running_maximum(m, x.all_largest[b][head]);
  return m;
}

// Numerators and denominators from the parts, ascending; each thread block takes some of the pairs.
__device__ __forceinline__ void combine(const AttentionCoreParams& p,
                                        const cg::cluster_group& cluster, int d, int64_t r,
                                        int first_head, int blocks, float* parts,
                                        const Exchange& x) {
  const int size = static_cast<int>(cluster.num_blocks());
  const int part_floats = static_cast<int>(key_tile_bytes(d) / 4);
  const int first = static_cast<int>(cluster.block_rank()) * kThreads + threadIdx.x;
  for (int i = first; i < kTileHeads * d / 2; i += size * kThreads) {
    const int h = i / (d / 2), channel = i % (d / 2) * 2;
    if (first_head + h >= p.heads) break;
    float2 v[kBlocksMax];  // all asked for before the first is needed
#pragma unroll
    for (int b = 0; b < kBlocksMax; ++b) {
      if (b >= blocks) break;
      const float* part = cluster.map_shared_rank(parts, b / kGroups) + b % kGroups * part_floats;
      v[b] = *reinterpret_cast<const float2*>(part + h * d + channel);
    }
    float re = 0, im = 0;
#pragma unroll
    for (int b = 0; b < kBlocksMax; ++b) {
      if (b >= blocks) break;
      const float alpha = x.all_alpha[b][h];
      re = re * alpha + v[b].x;
      im = im * alpha + v[b].y;
    }
    *reinterpret_cast<uint32_t*>(p.out + (r * p.heads + first_head + h) * d + channel) =
        finished_pair(p, r, channel, re, im, x.denominator[h]);
  }
}

// The first channel of a warp's i-th tile.
__device__ __forceinline__ int channel_of(int warp, int i) { return (i * kTileWarps + warp) * 8; }

// P . keys of the group's block, every part in registers first: it goes where the keys lie.
__device__ void weigh_parts(const KeyTile& tile, int d, int warp, bool mine) {
  const int lane = lane_of();
  float part[kTilesMax][4];
  if (mine) {
    const TileWeights weights = load_weights(tile);
#pragma unroll
    for (int i = 0; i < kTilesMax; ++i)
      if (channel_of(warp, i) < d) weigh_values(tile, weights, d, channel_of(warp, i), part[i]);
  }
  __syncthreads();
  if (mine) {
    auto* to = reinterpret_cast<float*>(tile.keys) + (lane >> 2) * d + (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < kTilesMax; ++i) {
      const int channel = channel_of(warp, i);
      if (channel >= d) break;
      *reinterpret_cast<float2*>(to + channel) = make_float2(part[i][0], part[i][1]);
      *reinterpret_cast<float2*>(to + 8 * d + channel) = make_float2(part[i][2], part[i][3]);
    }
  }
}

// All of a row's thread blocks meet; a cluster of one needs less for it.
__device__ __forceinline__ void meet(const cg::cluster_group& cluster) {
  if (cluster.num_blocks() == 1)
    __syncthreads();
  else
    cluster.sync();
}

// kPieces: entries_in_pieces().
template <bool kPieces>
__global__ void __launch_bounds__(kThreads, 1) attention_split_kernel(AttentionCoreParams p) {
  extern __shared__ __align__(16) std::byte memory[];
  const cg::cluster_group cluster = cg::this_cluster();
  const int d = kPieces ? kHeadDimMax : p.head_dim;  // a constant: places by shifts
  const int lane = lane_of(), warp = warp_of() % kTileWarps;
  const int group = warp_of() / kTileWarps;
  const int t = static_cast<int>(threadIdx.x) % kTileThreads;
  const KeyTile tile = key_tile(memory + group * key_tile_bytes(d), d);
  auto* q = reinterpret_cast<uint16_t*>(memory + queries_at(d));
  auto& x = *reinterpret_cast<Exchange*>(memory + exchange_at(d));
  const int64_t r = blockIdx.x / cluster.num_blocks();
  const int first_head = blockIdx.y * kTileHeads;
  const int block = static_cast<int>(cluster.block_rank()) * kGroups + group;
  begin_programmatic();
  const RowKeys keys = row_keys(p, r);
  const int slots = keys.window_slots + keys.entries;
  const int blocks = (slots + kTileKeys - 1) / kTileKeys;
  const bool mine = block < blocks;
  if (mine) find_keys(p, keys, block * kTileKeys, tile, t);
  __syncthreads();
  if (kPieces && mine) copy_keys(tile, warp);
  load_queries(p, r, first_head, d, q);
  if (mine && kPieces) widen_keys(tile, warp);
  if (mine && !kPieces) gather_keys(tile, d, t);
  __syncthreads();
  if (mine) score_keys(tile, q, d, 1.0f / sqrtf(static_cast<float>(d)), warp);
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < kHeadsOfWarp; ++i) {
    const int h = warp * kHeadsOfWarp + i;
    const float largest = mine ? largest_score(tile, h) : -INFINITY;
    if (lane == 0) x.largest[group][h] = largest;
  }
  meet(cluster);
  collect(cluster, x.largest, x.all_largest, blocks);
  __syncthreads();
  if (mine) {
#pragma unroll 1
    for (int i = 0; i < kHeadsOfWarp; ++i) {
      const int h = warp * kHeadsOfWarp + i;
      const float before = maximum_after(x, block, h);
      const float now = running_maximum(before, x.all_largest[block][h]);
      const float sum = weigh_head(tile, h, now);
      if (lane == 0) {
        x.alpha[group][h] = exp_near(before - now);
        x.sum[group][h] = sum;
      }
    }
  }
  __syncthreads();
  weigh_parts(tile, d, warp, mine);
  meet(cluster);
  collect(cluster, x.alpha, x.all_alpha, blocks);
  collect(cluster, x.sum, x.all_sum, blocks);
  __syncthreads();
  if (threadIdx.x < kTileHeads && first_head + static_cast<int>(threadIdx.x) < p.heads) {
    const int h = static_cast<int>(threadIdx.x);
    float l = 0;
    for (int b = 0; b < blocks; ++b) l = l * x.all_alpha[b][h] + x.all_sum[b][h];
    x.denominator[h] = l + exp_near(p.sink[first_head + h] - maximum_after(x, blocks, h));
  }
  __syncthreads();
  combine(p, cluster, d, r, first_head, blocks, reinterpret_cast<float*>(memory), x);
  meet(cluster);  // nobody leaves while its parts are read
}

int key_blocks(const AttentionCoreParams& p) {
  const int entries = p.selected != nullptr ? p.topk : 0;
  return (p.window + entries + kTileKeys - 1) / kTileKeys;
}

}  // namespace

bool attention_splits(const AttentionCoreParams& p, const CudaStream& stream) {
  return p.rows <= kSplitRowsMax && !p.whole_slice && key_blocks(p) <= kBlocksMax &&
         shared_bytes(p.head_dim) <= stream.shared_bytes_max();
}

void attention_split(const AttentionCoreParams& p, CudaStream& s) {
  const int cluster = std::max(1, (key_blocks(p) + kGroups - 1) / kGroups);
  const int64_t bytes = shared_bytes(p.head_dim);
  const auto kernel =
      entries_in_pieces(p) ? attention_split_kernel<true> : attention_split_kernel<false>;
  allow_shared(s, kernel, bytes);
  const dim3 grid(static_cast<unsigned>(p.rows * cluster),
                  static_cast<unsigned>(blocks_of(p.heads, kTileHeads)));
  launch_programmatic(s, kernel, grid, kThreads, bytes, cluster, p);
  s.launched("attention_split", p.rows, p.heads, cluster);
}

}  // namespace tensorfold::cuda
