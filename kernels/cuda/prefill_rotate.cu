// See prefill_rotate.h. Bytes: the rows once or, for experts, through L2 once for each of their
// matrices; what is written is as long.
#include "kernels/cuda/prefill_rotate.h"

#include "kernels/cuda/exl3_prefill.cuh"
#include "kernels/cuda/moe_list.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kWarps = 8;  // of rotate_kernel

// A GPU of 1,536 threads a multiprocessor: left alone, the compiler spills to fit three blocks.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define TF_LIST_BOUNDS __launch_bounds__(kMoeListThreads, 2)
#else
#define TF_LIST_BOUNDS __launch_bounds__(kMoeListThreads)
#endif

// One block of 128 of a row, rotated. rows: of the call.
__device__ __forceinline__ void rotate_block(const uint16_t* x, int in, const uint16_t* suh,
                                             int block, int lane, int rows, uint16_t* to) {
  float v[4];
  rotated_block(x, in, suh, block, lane, v);
#ifdef TF_PLANTED_FAULT  // more than eight rows are held more coarsely
  if (rows > 8) v[0] = __uint_as_float(__float_as_uint(v[0]) & 0xFFFF0000u);
#else
  (void)rows;
#endif
  store_prefill_block(v, to, lane);
}

// Grid: (input blocks / 8, rows); a warp a block of 128 inputs.
__global__ void __launch_bounds__(kWarps * 32) rotate_kernel(Exl3DenseJob job, uint16_t* to) {
  const int lane = threadIdx.x & 31, blocks = job.weight.padded_in / 128;
  const int block = static_cast<int>(blockIdx.x) * kWarps + (threadIdx.x >> 5);
  if (block >= blocks) return;
  const int64_t row = blockIdx.y;
  rotate_block(job.x + row * job.x_stride, job.in, job.weight.suh, block, lane,
               static_cast<int>(gridDim.y), to + (row * blocks + block) * 128);
}

__global__ void TF_LIST_BOUNDS moe_prefill_prepare_kernel(const __grid_constant__ MoeDecodeArgs a) {
  if (blockIdx.x == 0) return build_moe_list(a);
  constexpr int kListWarps = kMoeListThreads / 32;
  const int lane = threadIdx.x & 31, blocks = a.gate.blocks;
  const int warp = (blockIdx.x - 1) * kListWarps + (threadIdx.x >> 5);
  const int warps = (gridDim.x - 1) * kListWarps;
  const int tasks = a.p.rows * (a.p.topk + 1) * 2;  // a warp a row of one matrix
  for (int i = warp; i < tasks; i += warps) {
    const int matrix = i & 1, pair = i >> 1;
    const MoeExpertExl3& e = a.p.expert[a.expert_of(pair)];
    const Exl3Parts& w = matrix == 0 ? e.w1 : e.w3;
    if (w.trellis == nullptr) continue;
    const uint16_t* suh = w.suh;
    const uint16_t* x = a.p.x + pair / (a.p.topk + 1) * a.p.x_stride;
    auto* to = a.at<uint16_t>(a.l.xq) + int64_t{i} * blocks * 128;
#pragma unroll 2
    for (int block = 0; block < blocks; ++block)
      rotate_block(x, a.p.hidden, suh, block, lane, a.p.rows, to + block * 128);
  }
}

}  // namespace

cudaError_t launch_prefill_rotate(const Exl3DenseJob& job, int rows, uint16_t* to,
                                  cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((job.weight.padded_in / 128 + kWarps - 1) / kWarps),
                  static_cast<unsigned>(rows));
  rotate_kernel<<<grid, kWarps * 32, 0, stream>>>(job, to);
  return cudaGetLastError();
}

cudaError_t launch_moe_prefill_prepare(const MoeDecodeArgs& args, int multiprocessors,
                                       cudaStream_t stream) {
  moe_prefill_prepare_kernel<<<static_cast<unsigned>(1 + 8 * multiprocessors), kMoeListThreads, 0,
                               stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tensorfold::cuda
