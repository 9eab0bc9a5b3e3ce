// Rows of logits to tokens (kernels/sample_rows.h). A block a row: the bits of the tokens with a
// penalty or bias in shared memory, one pass over the logits (two with min_p), then over those
// tokens, and a maximum over the block. One thread a sequence counts what is accepted.
#include "kernels/cuda/sample_rows.h"

#include <cuda_runtime.h>

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

struct Shared {
  double score[kWarps];
  int32_t id[kWarps];
};

// The best of all threads, in every thread.
__device__ SampleBest block_best(SampleBest best, Shared& s) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int step = 16; step > 0; step /= 2) {
    SampleBest other;
    other.score = __shfl_xor_sync(0xffffffffu, best.score, step);
    other.id = __shfl_xor_sync(0xffffffffu, best.id, step);
    best = sample_better(best, other);
  }
  __syncthreads();  // what was there has been read
  if (lane == 0) {
    s.score[warp] = best.score;
    s.id[warp] = best.id;
  }
  __syncthreads();
  best = SampleBest{s.score[0], s.id[0]};
  for (int w = 1; w < kWarps; ++w) best = sample_better(best, SampleBest{s.score[w], s.id[w]});
  return best;
}

__global__ void __launch_bounds__(kThreads) sample_rows_kernel(SampleRowsParams p) {
  extern __shared__ uint32_t changed[];  // a bit a token
  __shared__ Shared shared;
  const int r = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const float* logits = p.logits + r * p.logits_stride;
  SampleScan scan;
  scan.row = p.row[r];
  if (scan.row.mask_row >= 0) scan.mask = p.masks + int64_t{scan.row.mask_row} * p.mask_words;
  for (int w = thread; w < (p.vocab + 31) / 32; w += kThreads) changed[w] = 0;
  __syncthreads();
  for (int i = thread; i < scan.row.changes; i += kThreads) {
    const int32_t token = p.change[scan.row.first_change + i].token;
    if (token >= 0 && token < p.vocab) atomicOr(&changed[token / 32], 1u << (token % 32));
  }
  __syncthreads();
  bool finite = true;
  SampleBest best;
  const bool twice = scan.row.greedy == 0 && scan.row.min_p > 0;
  for (int pass = twice ? 0 : 1; pass < 2; ++pass) {
    scan.draw = pass == 1 && scan.row.greedy == 0;
    best = SampleBest{};
    sample_plain(scan, logits, p.vocab, changed, thread, kThreads, best, finite);
    sample_changed(scan, logits, p.vocab, p.change, thread, kThreads, best);
    best = block_best(best, shared);
    scan.largest = best.score;
  }
  finite = __syncthreads_and(finite ? 1 : 0) != 0;
  if (thread != 0) return;
  const SampleState state = !finite       ? SampleState::kNonFinite
                            : best.id < 0 ? SampleState::kDeadEnd
                                          : SampleState::kDone;
  p.state[r] = static_cast<int32_t>(state);
  p.token[r] = state == SampleState::kDone ? best.id : -1;
}

__global__ void accept_kernel(SampleRowsParams p) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < p.sequences) p.accepted[i] = sample_accepted(p.sequence[i], p.draft, p.token, p.state);
}

}  // namespace

cudaError_t sample_rows(const SampleRowsParams& p, cudaStream_t stream) {
  if (p.vocab < 1 || p.vocab > kSampleVocabMax || p.rows < 0 || p.sequences < 0)
    return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  const size_t bytes = static_cast<size_t>((p.vocab + 31) / 32) * 4;
  sample_rows_kernel<<<static_cast<unsigned>(p.rows), kThreads, bytes, stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess || p.sequences == 0) return error;
  constexpr int kAcceptThreads = 64;
  accept_kernel<<<static_cast<unsigned>((p.sequences + kAcceptThreads - 1) / kAcceptThreads),
                  kAcceptThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace tensorfold::cuda
