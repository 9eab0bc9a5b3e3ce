// Attention over window rows and selected entries (kernels/attention_core.h).
//
// A block of four warps takes 16 heads of one row. Keys come in blocks of 64, as in the header:
// unpacked to bf16 in shared memory, scored on tensor cores (each warp 16 keys), weighted in fp32
// (each warp 4 heads), and their bf16 weights multiplied back (each warp a quarter of the
// channels). Nothing depends on what other rows there are. Few rows go to attention_split.cu.
#include "engine/base/check.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/launch.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int64_t shared_bytes(int d) {
  return key_tile_bytes(d) + kTileHeads * (d + kTilePad) * 2 + 2 * kTileHeads * 4;
}
static_assert(shared_bytes(kHeadDimMax) <= kSharedBlockBytes);

__global__ void __launch_bounds__(kTileThreads, 2) attention_core_kernel(AttentionCoreParams p) {
  extern __shared__ __align__(16) std::byte memory[];
  const int d = p.head_dim, tiles = d / 32, warp = warp_of(), lane = lane_of();
  const KeyTile tile = key_tile(memory, d);
  auto* q = reinterpret_cast<uint16_t*>(memory + key_tile_bytes(d));
  auto* alpha = reinterpret_cast<float*>(q + kTileHeads * (d + kTilePad));  // [16]
  float* denominator = alpha + kTileHeads;                                  // [16]
  const int64_t r = blockIdx.x;
  const int first_head = blockIdx.y * kTileHeads;
  const float scale = 1.0f / sqrtf(static_cast<float>(d));
  begin_programmatic();
  const RowKeys keys = row_keys(p, r);
  load_queries(p, r, first_head, q);
  float acc[kTilesMax][4] = {};
  float m[4] = {kNoMaximum, kNoMaximum, kNoMaximum, kNoMaximum}, l[4] = {};
  const int slots = keys.window_slots + keys.entries;
  for (int first = 0; first < slots; first += kTileKeys) {
    __syncthreads();
    find_keys(p, keys, first, tile, static_cast<int>(threadIdx.x));
    __syncthreads();
    gather_keys(tile, d, static_cast<int>(threadIdx.x));
    __syncthreads();
    score_keys(tile, q, d, scale, warp);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int h = warp * 4 + i;
      const float now = running_maximum(m[i], largest_score(tile, h));
      const float a = exp_near(m[i] - now);
      l[i] = l[i] * a + weigh_head(tile, h, now);
      m[i] = now;
      if (lane == 0) alpha[h] = a;
    }
    __syncthreads();
    const TileWeights weights = load_weights(tile);
    const float top = alpha[lane >> 2], bottom = alpha[(lane >> 2) + 8];
#pragma unroll
    for (int t = 0; t < kTilesMax; ++t) {
      if (t >= tiles) break;
      float sum[4];
      weigh_values(tile, weights, d, (warp * tiles + t) * 8, sum);
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[t][i] = acc[t][i] * (i < 2 ? top : bottom) + sum[i];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int h = warp * 4 + i;
    if (lane == 0 && first_head + h < p.heads)
      denominator[h] = l[i] + exp_near(p.sink[first_head + h] - m[i]);
  }
  __syncthreads();
#pragma unroll
  for (int t = 0; t < kTilesMax; ++t) {
    if (t >= tiles) break;
    const int channel = (warp * tiles + t) * 8 + (lane & 3) * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = (lane >> 2) + half * 8;
      if (first_head + h >= p.heads) continue;
      *reinterpret_cast<uint32_t*>(p.out + (r * p.heads + first_head + h) * d + channel) =
          finished_pair(p, r, channel, acc[t][half * 2], acc[t][half * 2 + 1], denominator[h]);
    }
  }
}

}  // namespace

void attention_core(const AttentionCoreParams& p, Stream& stream) {
  TF_CHECK_EQ(p.head_dim % 32, 0);
  TF_CHECK_LE(p.head_dim, kHeadDimMax);
  if (p.rows == 0) return;
  CudaStream& s = cuda_stream(stream);
  if (attention_splits(p, s)) return attention_split(p, s);
  const int64_t bytes = shared_bytes(p.head_dim);
  allow_shared(s, attention_core_kernel, bytes);
  launch_programmatic(s, attention_core_kernel, dim3(p.rows, blocks_of(p.heads, kTileHeads)),
                      kTileThreads, bytes, 1, p);
  s.launched("attention_core", p.rows, p.heads, p.head_dim);
}

}  // namespace tensorfold::cuda
