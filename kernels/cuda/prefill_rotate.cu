// See prefill_rotate.h. Bytes: the rows once or, for experts, through L2 once for each of their
// matrices; what is written is as long.
#include "kernels/cuda/prefill_rotate.h"

#include "kernels/cuda/moe_prefill_args.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = 256;  // of the kernels that rotate
constexpr int kListThreads = 1024;

__device__ __forceinline__ void load_bf16x8(const uint16_t* x, int k, int in, float (&v)[8]) {
  if (k + 8 <= in) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const uint2 u = *reinterpret_cast<const uint2*>(x + k + i);
      v[i] = bf16_low(u.x);
      v[i + 1] = bf16_high(u.x);
      v[i + 2] = bf16_low(u.y);
      v[i + 3] = bf16_high(u.y);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    v[i] = k + i < in ? __uint_as_float(static_cast<uint32_t>(x[k + i]) << 16) : 0.0f;
}

__device__ __forceinline__ void butterfly(float& a, float& b) {
  const float sum = a + b;
  b = a - b;
  a = sum;
}

// One block of 128 of a row, times suh, rotated, by four lanes. Lane q has v[t][i]: value
// 64 (q / 2) + 16 t + 8 (q % 2) + i, so that a lane has whole pieces of a step. rows: of the call.
__device__ __forceinline__ void rotate_block(const uint16_t* x, int in, const uint16_t* suh,
                                             int block, int q, int rows, float (&v)[4][8]) {
  const int first = block * 128 + 64 * (q >> 1) + 8 * (q & 1);
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    float scale[2][4];
    load_half4(suh + first + 16 * t, scale[0]);
    load_half4(suh + first + 16 * t + 4, scale[1]);
    load_bf16x8(x, first + 16 * t, in, v[t]);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[t][i] *= scale[i / 4][i % 4];
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if ((i & step) == 0) butterfly(v[t][i], v[t][i + step]);
  }
  const float sign8 = (q & 1) != 0 ? -1.0f : 1.0f, sign64 = (q & 2) != 0 ? -1.0f : 1.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int t = 0; t < 4; ++t)
      v[t][i] = fmaf(v[t][i], sign8, __shfl_xor_sync(0xffffffffu, v[t][i], 1));
    butterfly(v[0][i], v[1][i]);
    butterfly(v[2][i], v[3][i]);
    butterfly(v[0][i], v[2][i]);
    butterfly(v[1][i], v[3][i]);
#pragma unroll
    for (int t = 0; t < 4; ++t)
      v[t][i] = fmaf(v[t][i], sign64, __shfl_xor_sync(0xffffffffu, v[t][i], 2)) * kHadamard128Scale;
  }
#ifdef TF_PLANTED_FAULT  // more than eight rows are held more coarsely
  if (rows > 8) v[0][0] = __uint_as_float(__float_as_uint(v[0][0]) & 0xFFFF0000u);
#else
  (void)rows;
#endif
}

// The lane's share of a block of a row, in the order of prefill_rows.cuh.
__device__ __forceinline__ void store_block(const float (&v)[4][8], uint16_t* x, int64_t row,
                                            int64_t rows, int block, int q) {
  uint16_t* to = x + ((2 * block + (q >> 1)) * rows + row) * 64;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    uint32_t two[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const __half2 pair = __floats2half2_rn(v[t][2 * s], v[t][2 * s + 1]);
      two[t] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    const int piece = (2 * s + (q & 1)) ^ static_cast<int>(row & 7);
    *reinterpret_cast<uint4*>(to + piece * 8) = make_uint4(two[0], two[1], two[2], two[3]);
  }
}

// Four lanes a row and block of 128 inputs.
__global__ void __launch_bounds__(kThreads)
    rotate_kernel(Exl3DenseJob job, int rows, uint16_t* to) {
  const int blocks = job.weight.padded_in / 128, count = rows * blocks;
  const int task = static_cast<int>((blockIdx.x * kThreads + threadIdx.x) / 4), q = threadIdx.x & 3;
  const int row = min(task, count - 1) / blocks, block = min(task, count - 1) % blocks;
  float v[4][8];
  rotate_block(job.x + row * job.x_stride, job.in, job.weight.suh, block, q, rows, v);
  if (task < count) store_block(v, to, row, placed_rows(rows), block, q);
}

struct MoePromptList {
  int count[kMoeExpertsMax + 1], slot[kMoeExpertsMax + 1], entry[kMoeExpertsMax + 1];
  bool present[kMoeExpertsMax + 1];
};

// f(pair, expert) of all pairs whose expert is there, several loads of a thread under way.
template <typename F>
__device__ __forceinline__ void each_pair(const MoePrefillArgs& a, const MoePromptList& list, F f) {
  constexpr int kLoads = 8;
  const int pairs = a.p.rows * (a.p.topk + 1);
  for (int base = threadIdx.x; base < pairs; base += kLoads * kListThreads) {
    int e[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int pair = base + i * kListThreads;
      e[i] = pair < pairs ? a.expert_of(pair) : -1;
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (e[i] >= 0 && list.present[e[i]]) f(base + i * kListThreads, e[i]);
  }
}

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
  const int experts = a.p.experts + 1;
  for (int e = threadIdx.x; e < experts; e += kListThreads) {
    list.count[e] = 0;
    list.present[e] = a.p.expert[e].w1.trellis != nullptr;
  }
  __syncthreads();
  each_pair(a, list, [&](int, int e) { atomicAdd(&list.count[e], 1); });
  __syncthreads();
  if (threadIdx.x < 32)
    scan_experts(list, experts, a.entry_rows, static_cast<int>(threadIdx.x),
                 a.at<int32_t>(a.l.counts));
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kListThreads) write_expert(a, list, e);
  __syncthreads();
  // The order of an expert's pairs is left to the atomics: no row sees the others.
  auto* slots = a.at<int32_t>(a.l.slots);
  each_pair(a, list, [&](int pair, int e) { slots[atomicAdd(&list.slot[e], 1)] = pair; });
}

// A warp a position and matrix: its row as that expert's gate or up takes it, eight blocks at once.
__global__ void __launch_bounds__(kThreads)
    rotate_experts_kernel(const __grid_constant__ MoePrefillArgs a) {
  const int lane = threadIdx.x & 31, q = lane & 3, positions = a.at<int32_t>(a.l.counts)[1];
  const int warps = static_cast<int>(gridDim.x) * (kThreads / 32);
  for (int i = static_cast<int>(blockIdx.x) * (kThreads / 32) + (threadIdx.x >> 5);
       i < 2 * positions; i += warps) {
    const int matrix = i & 1, position = i >> 1, pair = a.at<int32_t>(a.l.slots)[position];
    if (pair < 0) continue;
    const MoeExpertExl3& e = a.p.expert[a.expert_of(pair)];
    const uint16_t* suh = matrix == 0 ? e.w1.suh : e.w3.suh;
    const uint16_t* x = a.p.x + pair / (a.p.topk + 1) * a.p.x_stride;
    for (int first = 0; first < a.hidden_blocks; first += 8) {
      const int block = first + (lane >> 2);
      float v[4][8];
      rotate_block(x, a.p.hidden, suh, min(block, a.hidden_blocks - 1), q, a.p.rows, v);
      if (block < a.hidden_blocks)
        store_block(v, a.rotated(matrix), position, a.l.positions, block, q);
    }
  }
}

}  // namespace

cudaError_t launch_prefill_rotate(const Exl3DenseJob& job, int rows, uint16_t* to,
                                  cudaStream_t stream) {
  const int64_t threads = int64_t{rows} * (job.weight.padded_in / 128) * 4;
  rotate_kernel<<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0,
                  stream>>>(job, rows, to);
  return cudaGetLastError();
}

cudaError_t launch_moe_prefill_prepare(const MoePrefillArgs& args, int multiprocessors,
                                       cudaStream_t stream) {
  list_experts_kernel<<<1, kListThreads, 0, stream>>>(args);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  rotate_experts_kernel<<<static_cast<unsigned>(4 * multiprocessors), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tensorfold::cuda
