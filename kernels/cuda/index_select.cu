// Choice of global entries (kernels/index_select.h).
//
// Rows are taken in groups whose scores fit the workspace. Per group: queries are quantised once;
// scores on integer matrix units (index_scores.cu; FP4 products are exact);
// block maxima and the candidate choice; masking; the choice of entries (top_entries.h).
#include "kernels/index_select.h"

#include <algorithm>

#include "engine/base/check.h"
#include "kernels/cuda/index_scores.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/top_entries.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int64_t kScoreBytesMax = int64_t{256} << 20;  // of a group of rows
constexpr int kThreads = 256;

int64_t padded_entries(int64_t entries) { return (entries + 31) / 32 * 32; }
int group_rows(int rows, int64_t entries) {
  const int64_t row_bytes = padded_entries(entries) * 4;
  return static_cast<int>(
      std::clamp<int64_t>(kScoreBytesMax / std::max<int64_t>(row_bytes, 1), 1, std::max(rows, 1)));
}

__device__ int64_t visible_of(const IndexSelectParams& p, int64_t r) {
  const AttentionSlice& s = p.slice[p.row_slice[r]];
  return (s.first_position + (r - s.first_row) + 1) / p.pool.ratio;
}

__device__ int64_t candidate_places(const IndexSelectParams& p) {
  return int64_t{p.candidate_blocks} * p.candidate_block_size;
}

// What needs no scores: few entries are all selected, few blocks are all candidates.
__global__ void __launch_bounds__(kThreads) settle_kernel(IndexSelectParams p) {
  const int64_t r = blockIdx.x, visible = visible_of(p, r);
  if (visible <= p.topk) {
    for (int i = threadIdx.x; i < p.topk; i += kThreads)
      p.selected[r * p.topk + i] = i < visible ? i : -1;
    if (threadIdx.x == 0) p.selected_count[r] = static_cast<int32_t>(visible);
  }
  if (!p.builds_candidates || visible > candidate_places(p)) return;
  const int64_t blocks = (visible + p.candidate_block_size - 1) / p.candidate_block_size;
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads)
    p.candidates[r * p.candidate_blocks + b] = static_cast<int32_t>(b);
  if (threadIdx.x == 0) p.candidate_count[r] = static_cast<int32_t>(blocks);
}

__global__ void __launch_bounds__(kThreads)
    copy_scores_kernel(IndexSelectParams p, int first_row, const float* scores, int64_t stride) {
  const int64_t r = first_row + blockIdx.x, visible = visible_of(p, r);
  for (int64_t j = threadIdx.x; j < visible; j += kThreads)
    p.scores[r * p.scores_stride + j] = scores[blockIdx.x * stride + j];
}

// B_b = max of S over block b; the block of the newest entry is pinned.
__global__ void __launch_bounds__(kThreads)
    block_maxima_kernel(IndexSelectParams p, int first_row, const float* scores, int64_t stride,
                        float* maxima, int64_t maxima_stride) {
  const int64_t r = first_row + blockIdx.y, visible = visible_of(p, r);
  if (visible <= candidate_places(p)) return;
  const int64_t b = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t begin = b * p.candidate_block_size;
  if (begin >= visible) return;
  const int64_t end = min(begin + p.candidate_block_size, visible);
  const float* s = scores + blockIdx.y * stride;
  float m = -INFINITY;
  for (int64_t j = begin; j < end; ++j) m = m < s[j] ? s[j] : m;
  if (b == (visible - 1) / p.candidate_block_size) m = INFINITY;
  maxima[blockIdx.y * maxima_stride + b] = m;
}

__global__ void __launch_bounds__(kTopThreads)
    choose_blocks_kernel(IndexSelectParams p, int first_row, const float* maxima, int64_t stride) {
  __shared__ TopShared shared;
  const int64_t r = first_row + blockIdx.x, visible = visible_of(p, r);
  if (visible <= candidate_places(p)) return;
  const int64_t blocks = (visible + p.candidate_block_size - 1) / p.candidate_block_size;
  const int count = top_entries(maxima + blockIdx.x * stride, blocks, p.candidate_blocks, true,
                                p.candidates + r * p.candidate_blocks, shared);
  if (threadIdx.x == 0) p.candidate_count[r] = count;
}

// Entries outside the row's candidate blocks get -infinity. bits: one per block.
__global__ void __launch_bounds__(kTopThreads)
    mask_scores_kernel(IndexSelectParams p, int first_row, float* scores, int64_t stride) {
  extern __shared__ uint32_t bits[];
  const int64_t r = first_row + blockIdx.x, visible = visible_of(p, r);
  if (visible <= p.topk) return;
  const int64_t blocks = (visible + p.candidate_block_size - 1) / p.candidate_block_size;
  for (int64_t w = threadIdx.x; w < (blocks + 31) / 32; w += kTopThreads) bits[w] = 0;
  __syncthreads();
  const int32_t* kept = p.candidates + r * p.candidate_blocks;
  for (int i = threadIdx.x; i < p.candidate_count[r]; i += kTopThreads)
    atomicOr(&bits[kept[i] / 32], 1u << (kept[i] % 32));
  __syncthreads();
  float* s = scores + blockIdx.x * stride;
  for (int64_t j = threadIdx.x; j < visible; j += kTopThreads) {
    const int64_t b = j / p.candidate_block_size;
    if ((bits[b / 32] >> (b % 32) & 1u) == 0) s[j] = -INFINITY;
  }
}

__global__ void __launch_bounds__(kTopThreads)
    choose_entries_kernel(IndexSelectParams p, int first_row, const float* scores, int64_t stride) {
  __shared__ TopShared shared;
  const int64_t r = first_row + blockIdx.x, visible = visible_of(p, r);
  if (visible <= p.topk) return;
  int32_t* out = p.selected + r * p.topk;
  const int count = top_entries(scores + blockIdx.x * stride, visible, p.topk, false, out, shared);
  for (int i = count + threadIdx.x; i < p.topk; i += kTopThreads) out[i] = -1;
  if (threadIdx.x == 0) p.selected_count[r] = count;
}

struct Buffers {
  IndexQueries queries;
  float* scores = nullptr;
  int64_t stride = 0;
  float* maxima = nullptr;
  int64_t maxima_stride = 0;
};

void run_group(const IndexSelectParams& p, const Buffers& b, int first, int rows, CudaStream& s) {
  index_scores(p, b.queries, first, rows, b.scores, b.stride, s);
  if (p.scores != nullptr) {
    copy_scores_kernel<<<rows, kThreads, 0, s.handle()>>>(p, first, b.scores, b.stride);
    s.launched("copy_scores", rows, p.entries_max);
  }
  if (p.builds_candidates) {
    const dim3 grid(blocks_of(b.maxima_stride, kThreads), rows);
    block_maxima_kernel<<<grid, kThreads, 0, s.handle()>>>(p, first, b.scores, b.stride, b.maxima,
                                                           b.maxima_stride);
    s.launched("block_maxima", rows, b.maxima_stride);
    choose_blocks_kernel<<<rows, kTopThreads, 0, s.handle()>>>(p, first, b.maxima, b.maxima_stride);
    s.launched("choose_blocks", rows, b.maxima_stride, p.candidate_blocks);
  }
  if (p.uses_candidates) {
    const int64_t blocks = p.entries_max / p.candidate_block_size + 1;
    const int64_t bytes = (blocks + 31) / 32 * 4;
    allow_shared(s, mask_scores_kernel, bytes);
    mask_scores_kernel<<<rows, kTopThreads, bytes, s.handle()>>>(p, first, b.scores, b.stride);
    s.launched("mask_scores", rows, p.entries_max);
  }
  index_choose(p, first, rows, b.scores, b.stride, s);
}

int64_t maxima_places(int64_t entries, int block_size) {
  return padded_entries(entries / std::max(block_size, 1) + 1);
}

}  // namespace

void index_choose(const IndexSelectParams& p, int first, int rows, const float* scores,
                  int64_t stride, CudaStream& stream) {
  choose_entries_kernel<<<rows, kTopThreads, 0, stream.handle()>>>(p, first, scores, stride);
  stream.launched("choose_entries", rows, p.entries_max, p.topk);
}

int64_t index_select_bytes(const WorkspaceShape& s) {
  const int group = group_rows(s.rows, s.entries);
  return index_queries_bytes(s.rows, s.index_heads, s.index_dim) +
         Pieces::padded(group * padded_entries(s.entries) * 4) +
         Pieces::padded(group * maxima_places(s.entries, s.candidate_block_size) * 4) +
         Pieces::padded(kScoreBytesMax / 8);  // fewer entries make larger groups; rounding
}

void index_select(const IndexSelectParams& p, Stream& stream) {
  TF_CHECK_LE(p.dim, kIndexDimMax);
  TF_CHECK_EQ(p.dim % 32, 0);
  if (p.rows == 0) return;
  CudaStream& s = cuda_stream(stream);
  settle_kernel<<<p.rows, kThreads, 0, s.handle()>>>(p);
  s.launched("settle", p.rows, p.entries_max, p.topk);
  const bool few = p.entries_max <= p.topk &&
                   (!p.builds_candidates ||
                    p.entries_max <= int64_t{p.candidate_blocks} * p.candidate_block_size);
  if (few && p.scores == nullptr) return;
  Pieces pieces(p.workspace);
  Buffers b;
  b.queries = take_queries(pieces, p.rows, p.heads, p.dim);
  b.stride = padded_entries(p.entries_max);
  const int group = group_rows(p.rows, p.entries_max);
  b.scores = pieces.take<float>(group * b.stride);
  if (p.builds_candidates) {
    b.maxima_stride = maxima_places(p.entries_max, p.candidate_block_size);
    b.maxima = pieces.take<float>(group * b.maxima_stride);
  }
  index_queries(p, b.queries, s);
  for (int first = 0; first < p.rows; first += group)
    run_group(p, b, first, std::min(group, p.rows - first), s);
}

}  // namespace tensorfold::cuda
