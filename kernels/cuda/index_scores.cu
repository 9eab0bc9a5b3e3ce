// See kernels/cuda/index_scores.h.
#include "kernels/cuda/index_scores.h"

#include "kernels/cuda/rows.cuh"
#include "kernels/formats.h"

namespace tensorfold::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kScoreThreads = 128;  // keys of a block
constexpr int kScoreRows = 8;       // rows that share the keys of a block
constexpr int kWordsMax = kIndexDimMax / 4;
constexpr int kBlocksMax = kIndexDimMax / 32;

// A warp per head.
__global__ void __launch_bounds__(kWarps * 32)
    index_queries_kernel(IndexSelectParams p, IndexQueries q) {
  __shared__ float rows[kWarps][kIndexDimMax];
  const int64_t task = int64_t{blockIdx.x} * kWarps + warp_of();  // row, head
  if (task >= int64_t{p.rows} * p.heads) return;
  const int64_t r = task / p.heads;
  float* row = rows[warp_of()];
  for (int k = lane_of(); k < p.dim; k += 32) row[k] = bf16_value(p.iq[task * p.dim + k]);
  warp_rotate(row, p.dim, p.rope_dim, p.rope + r * p.rope_dim, false);
  for (int k = lane_of(); k < p.dim; k += 32) {
    uint8_t scale;
    const uint8_t code = quantise_fp4_ue8m0_lanes(row[k], scale);
    q.codes[task * p.dim + k] = static_cast<int8_t>(e2m1_twice(code));
    if (lane_of() == 0) q.scales[task * (p.dim / 32) + k / 32] = ue8m0_value(scale) * 0.25f;
  }
  if (lane_of() == 0) q.weights[task] = round_bf16(bf16_value(p.iw[task]) * p.weight_scale);
}

// Four codes of 4 bits -> four bytes of twice the value. Magnitudes come from a byte table by
// permutation, signs are applied by (v ^ s) - s per byte.
__device__ uint32_t widen_codes(uint32_t codes16) {
  const uint32_t magnitude = __byte_perm(0x03020100u, 0x0C080604u, codes16 & 0x7777u);
  const uint32_t sign = (codes16 & 8u) << 4 | (codes16 & 0x80u) << 8 | (codes16 & 0x800u) << 12 |
                        (codes16 & 0x8000u) << 16;
  const uint32_t mask = (sign >> 7) * 255u;  // 0xff in every negative byte
  return __vsub4(magnitude ^ mask, mask);
}

struct Key {
  int32_t words[kWordsMax];  // int8 x 4
  float scales[kBlocksMax];
};

__device__ void load_key(const IndexSelectParams& p, const AttentionSlice& s, int64_t j, Key& key) {
  const int64_t block = s.block_table[j / p.pool.entries_per_block];
  const uint8_t* row = p.pool.base + block * p.pool.block_bytes + p.pool.index_offset +
                       j % p.pool.entries_per_block * index_key_bytes(p.dim);
  if (index_key_bytes(p.dim) % 4 == 0) {  // keys are whole words, as 128 channels are
#pragma unroll
    for (int w = 0; w < kWordsMax; w += 2) {
      if (w >= p.dim / 4) break;
      const uint32_t codes = *reinterpret_cast<const uint32_t*>(row + w * 2);
      key.words[w] = static_cast<int32_t>(widen_codes(codes & 0xffffu));
      key.words[w + 1] = static_cast<int32_t>(widen_codes(codes >> 16));
    }
  } else {
#pragma unroll
    for (int w = 0; w < kWordsMax; ++w)
      if (w < p.dim / 4)
        key.words[w] = static_cast<int32_t>(
            widen_codes(row[w * 2] | static_cast<uint32_t>(row[w * 2 + 1]) << 8));
  }
#pragma unroll
  for (int b = 0; b < kBlocksMax; ++b)
    if (b < p.dim / 32) key.scales[b] = ue8m0_value(row[p.dim / 2 + b]);
}

// One row's score of the thread's key.
__device__ float score_key(const IndexSelectParams& p, const int32_t* codes, const float* scales,
                           const float* weights, const Key& key) {
  const int words = p.dim / 4, blocks = p.dim / 32;
  float sum = 0;
  for (int h = 0; h < p.heads; ++h) {
    float dot = 0;
#pragma unroll
    for (int b = 0; b < kBlocksMax; ++b) {
      if (b >= blocks) break;
      int exact = 0;
#pragma unroll
      for (int w = 0; w < 8; ++w)
        exact = __dp4a(codes[h * words + b * 8 + w], key.words[b * 8 + w], exact);
      dot += static_cast<float>(exact) * (scales[h * blocks + b] * key.scales[b]);
    }
    if (p.bf16_scores) dot = round_bf16(dot);
    dot = dot < 0.0f ? 0.0f : dot;
    dot = dot * weights[h];
    sum += p.bf16_scores ? round_bf16(dot) : dot;
  }
  return p.bf16_scores ? round_bf16(sum) : sum;
}

__global__ void __launch_bounds__(kScoreThreads)
    index_scores_kernel(IndexSelectParams p, IndexQueries q, int first_row, int rows, float* scores,
                        int64_t stride) {
  extern __shared__ int32_t shared[];  // codes of a row, its scales and weights
  const int words = p.heads * p.dim / 4, scale_count = p.heads * p.dim / 32;
  float* scales = reinterpret_cast<float*>(shared + words);
  float* weights = scales + scale_count;
  const int64_t j = int64_t{blockIdx.x} * kScoreThreads + threadIdx.x;
  const int begin = blockIdx.y * kScoreRows, end = min(rows, begin + kScoreRows);
  Key key;
  const AttentionSlice* loaded = nullptr;
  for (int i = begin; i < end; ++i) {
    const int64_t r = first_row + i;
    const AttentionSlice* s = &p.slice[p.row_slice[r]];
    const int64_t visible = (s->first_position + (r - s->first_row) + 1) / p.pool.ratio;
    const bool settled =
        p.scores == nullptr && visible <= p.topk &&
        (!p.builds_candidates || visible <= int64_t{p.candidate_blocks} * p.candidate_block_size);
    if (settled || int64_t{blockIdx.x} * kScoreThreads >= visible) continue;  // the whole block
    __syncthreads();
    const auto* codes = reinterpret_cast<const int32_t*>(q.codes + r * p.heads * p.dim);
    for (int k = threadIdx.x; k < words; k += kScoreThreads) shared[k] = codes[k];
    for (int k = threadIdx.x; k < scale_count; k += kScoreThreads)
      scales[k] = q.scales[r * scale_count + k];
    for (int k = threadIdx.x; k < p.heads; k += kScoreThreads)
      weights[k] = q.weights[r * p.heads + k];
    __syncthreads();
    if (j >= visible) continue;
    if (loaded != s) load_key(p, *s, j, key);
    loaded = s;
    scores[i * stride + j] = score_key(p, shared, scales, weights, key);
  }
}

}  // namespace

int64_t index_queries_bytes(int rows, int heads, int dim) {
  const int64_t n = int64_t{rows} * heads;
  return Pieces::padded(n * dim) + Pieces::padded(n * (dim / 32) * 4) + Pieces::padded(n * 4);
}

IndexQueries take_queries(Pieces& pieces, int rows, int heads, int dim) {
  const int64_t n = int64_t{rows} * heads;
  IndexQueries q;
  q.codes = pieces.take<int8_t>(n * dim);
  q.scales = pieces.take<float>(n * (dim / 32));
  q.weights = pieces.take<float>(n);
  return q;
}

void index_queries(const IndexSelectParams& p, const IndexQueries& q, CudaStream& stream) {
  const int blocks = blocks_of(int64_t{p.rows} * p.heads, kWarps);
  index_queries_kernel<<<blocks, kWarps * 32, 0, stream.handle()>>>(p, q);
  stream.launched("index_queries", p.rows, p.heads, p.dim);
}

void index_scores(const IndexSelectParams& p, const IndexQueries& q, int first, int rows,
                  float* scores, int64_t stride, CudaStream& stream) {
  if (p.entries_max == 0) return;
  const int64_t bytes =
      int64_t{p.heads} * p.dim + int64_t{p.heads} * (p.dim / 32) * 4 + int64_t{p.heads} * 4;
  const dim3 grid(blocks_of(p.entries_max, kScoreThreads), blocks_of(rows, kScoreRows));
  allow_shared(stream, index_scores_kernel, bytes);
  index_scores_kernel<<<grid, kScoreThreads, bytes, stream.handle()>>>(p, q, first, rows, scores,
                                                                       stride);
  stream.launched("index_scores", rows, p.entries_max, p.heads);
}

}  // namespace tensorfold::cuda
