// See prefill_rotate.h. Bytes: the rows once or, for experts, through L2 once for each of their
// matrices; what is written is as long.
#include "kernels/cuda/prefill_rotate.h"

#include "kernels/cuda/moe_prefill_args.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kWarps = 8;  // of rotate_kernel

constexpr int kListThreads = 1024;
constexpr int kExpertWarps = 8;  // of rotate_experts_kernel

// One block of 128 of a row, rotated. rows: of the call.
__device__ __forceinline__ void rotate_block(const uint16_t* x, int in, const uint16_t* suh,
                                             int block, int lane, int rows, float (&v)[4]) {
  rotated_block(x, in, suh, block, lane, v);
#ifdef TF_PLANTED_FAULT  // more than eight rows are held more coarsely
  if (rows > 8) v[0] = __uint_as_float(__float_as_uint(v[0]) & 0xFFFF0000u);
#else
  (void)rows;
#endif
}

// Grid: (input blocks / 8, rows); a warp a block of 128 inputs.
__global__ void __launch_bounds__(kWarps * 32) rotate_kernel(Exl3DenseJob job, uint16_t* to) {
  const int lane = threadIdx.x & 31, blocks = job.weight.padded_in / 128;
  const int block = static_cast<int>(blockIdx.x) * kWarps + (threadIdx.x >> 5);
  if (block >= blocks) return;
  const int64_t row = blockIdx.y;
  float v[4];
  rotate_block(job.x + row * job.x_stride, job.in, job.weight.suh, block, lane,
               static_cast<int>(gridDim.y), v);
  store_row_block(v, to, row, placed_rows(gridDim.y), block, lane);
}

struct MoePromptList {
  int count[kMoeExpertsMax + 1], slot[kMoeExpertsMax + 1], entry[kMoeExpertsMax + 1];
};

// Exclusive sums over the experts, by one warp: of their positions (multiples of 8) and entries.
__device__ __forceinline__ void scan_experts(MoePromptList& list, int experts, int entry_rows,
                                             int lane, int32_t* counts) {
  const int each = (experts + 31) / 32, end = min(experts, lane * each + each);
  int slots = 0, cuts = 0;
  for (int e = lane * each; e < end; ++e) {
    slots += static_cast<int>(placed_rows(list.count[e]));
    cuts += (list.count[e] + entry_rows - 1) / entry_rows;
  }
  int slots_at = slots, cuts_at = cuts;
  for (int step = 1; step < 32; step *= 2) {
    const int s = __shfl_up_sync(0xffffffffu, slots_at, step);
    const int c = __shfl_up_sync(0xffffffffu, cuts_at, step);
    if (lane >= step) {
      slots_at += s;
      cuts_at += c;
    }
  }
  if (lane == 31) {
    counts[0] = cuts_at;
    counts[1] = slots_at;
  }
  slots_at -= slots;
  cuts_at -= cuts;
  for (int e = lane * each; e < end; ++e) {
    list.slot[e] = slots_at;
    list.entry[e] = cuts_at;
    slots_at += static_cast<int>(placed_rows(list.count[e]));
    cuts_at += (list.count[e] + entry_rows - 1) / entry_rows;
  }
}

// The entries of expert e, and -1 at the positions that none of its pairs takes.
__device__ __forceinline__ void write_expert(const MoePrefillArgs& a, const MoePromptList& list,
                                             int e) {
  const MoeExpertExl3& x = a.p.expert[e];
  auto* entries = a.at<MoePrefillEntry>(a.l.entries);
  auto* slots = a.at<int32_t>(a.l.slots);
  MoePrefillEntry entry;
  entry.expert = e;
  entry.bits1 = static_cast<uint8_t>(x.w1.half_bits / 2);
  entry.bits3 = static_cast<uint8_t>(x.w3.half_bits / 2);
  entry.bits2 = static_cast<uint8_t>(x.w2.half_bits / 2);
  entry.w1 = x.w1.trellis;
  entry.w3 = x.w3.trellis;
  entry.w2 = x.w2.trellis;
  const int count = list.count[e], slot = list.slot[e];
  for (int at = 0, i = list.entry[e]; at < count; at += a.entry_rows, ++i) {
    entry.first = slot + at;
    entry.count = min(a.entry_rows, count - at);
    entries[i] = entry;
  }
  for (int at = count; at < static_cast<int>(placed_rows(count)); ++at) slots[slot + at] = -1;
}

// One thread block.
__global__ void __launch_bounds__(kListThreads)
    list_experts_kernel(const __grid_constant__ MoePrefillArgs a) {
  __shared__ MoePromptList list;
  const int experts = a.p.experts + 1, pairs = a.p.rows * (a.p.topk + 1);
  for (int e = threadIdx.x; e < experts; e += kListThreads) list.count[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += kListThreads) {
    const int e = a.expert_of(i);
    if (a.p.expert[e].w1.trellis != nullptr) atomicAdd(&list.count[e], 1);
  }
  __syncthreads();
  if (threadIdx.x < 32)
    scan_experts(list, experts, a.entry_rows, static_cast<int>(threadIdx.x),
                 a.at<int32_t>(a.l.counts));
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kListThreads) write_expert(a, list, e);
  __syncthreads();
  // The order of an expert's pairs is left to the atomics: no row sees the others.
  for (int i = threadIdx.x; i < pairs; i += kListThreads) {
    const int e = a.expert_of(i);
    if (a.p.expert[e].w1.trellis != nullptr)
      a.at<int32_t>(a.l.slots)[atomicAdd(&list.slot[e], 1)] = i;
  }
}

// A warp a position and matrix: its row as that expert's gate or up takes it.
__global__ void __launch_bounds__(kExpertWarps * 32)
    rotate_experts_kernel(const __grid_constant__ MoePrefillArgs a) {
  const int lane = threadIdx.x & 31, positions = a.at<int32_t>(a.l.counts)[1];
  const int warp = static_cast<int>(blockIdx.x) * kExpertWarps + (threadIdx.x >> 5);
  const int warps = static_cast<int>(gridDim.x) * kExpertWarps;
  for (int i = warp; i < 2 * positions; i += warps) {
    const int matrix = i & 1, position = i >> 1, pair = a.at<int32_t>(a.l.slots)[position];
    if (pair < 0) continue;
    const MoeExpertExl3& e = a.p.expert[a.expert_of(pair)];
    const uint16_t* suh = matrix == 0 ? e.w1.suh : e.w3.suh;
    const uint16_t* x = a.p.x + pair / (a.p.topk + 1) * a.p.x_stride;
    uint16_t* to = a.rotated(matrix);
#pragma unroll 2
    for (int block = 0; block < a.hidden_blocks; ++block) {
      float v[4];
      rotate_block(x, a.p.hidden, suh, block, lane, a.p.rows, v);
      store_row_block(v, to, position, a.l.positions, block, lane);
    }
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

cudaError_t launch_moe_prefill_prepare(const MoePrefillArgs& args, int multiprocessors,
                                       cudaStream_t stream) {
  list_experts_kernel<<<1, kListThreads, 0, stream>>>(args);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  rotate_experts_kernel<<<static_cast<unsigned>(8 * multiprocessors), kExpertWarps * 32, 0,
                          stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tensorfold::cuda
