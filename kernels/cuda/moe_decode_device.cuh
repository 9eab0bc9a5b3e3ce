// What the three launches of the MoE of generated rows share: their argument, a warp's unit of work
// and the way in which units of one output block find out who is last.
#pragma once

#include "kernels/cuda/exl3_rotate.cuh"
#include "kernels/cuda/gpu_attribute.h"
#include "kernels/cuda/moe_decode.h"
#include "kernels/cuda/moe_plan.h"

namespace tensorfold::cuda {

inline constexpr int kMoeThreads = 256;
inline constexpr int kMoeWarps = kMoeThreads / 32;

// Thread blocks of the products that a multiprocessor holds. A GB10 needs about 4 KB of reads in
// flight on each to fill its memory (273 GB/s, 0.7 us, 48 of them) and issues five times what the
// decode takes: one block has 12 KB of 3-bit codes in flight and registers for all of a unit. An
// H200 needs the warps of two, at 128 registers.
constexpr int moe_blocks_per_multiprocessor(int major) { return major >= 12 ? 1 : 2; }
#ifdef __CUDA_ARCH__
#define TF_MOE_BLOCKS moe_blocks_per_multiprocessor(__CUDA_ARCH__ / 100)
#else
#define TF_MOE_BLOCKS 1
#endif

struct MoeDecodeArgs {
  MoeDecodeParams p;
  MoeDecodeLayout l;
  MoeCut gate, down;
  int down_parts;  // units of 64 outputs of down, moe_down_parts
  int entry_rows;  // rows of an entry at most: 4 or 8
  bool streams;    // stream_hint()

  __host__ __device__ int padded_hidden() const { return gate.blocks * 128; }
  __host__ __device__ int padded_inter() const { return down.blocks * 128; }
  template <typename T>
  __device__ T* at(int64_t offset) const {
    return reinterpret_cast<T*>(p.workspace + offset);
  }
  __device__ int expert_of(int pair) const {
    const int i = pair % (p.topk + 1);
    return i == p.topk ? p.experts : p.ids[pair / (p.topk + 1) * p.topk + i];
  }
};

cudaError_t launch_moe_prepare(const MoeDecodeArgs& args, cudaStream_t stream);
cudaError_t launch_moe_gate_up(const MoeDecodeArgs& args, cudaStream_t stream);
cudaError_t launch_moe_down(const MoeDecodeArgs& args, cudaStream_t stream);

template <typename Kernel>
cudaError_t launch_next(Kernel kernel, unsigned blocks, unsigned threads, const MoeDecodeArgs& a,
                        cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[0].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, a);
}

// Thread blocks of kMoeThreads that the device holds at once.
inline cudaError_t moe_grid(unsigned* blocks) {
  int device = 0, sms = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = gpu_attribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = gpu_attribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  *blocks = static_cast<unsigned>(moe_blocks_per_multiprocessor(major) * sms);
  return error;
}

// A warp's unit: 64 outputs of a matrix by some chunks of its inputs, for rows [0, rows) of an
// entry.
struct MoeUnit {
  const Exl3Parts* weight;
  int strip;             // of 64 outputs
  int begin, count;      // input blocks
  int each = 0;          // of a chunk, where the unit has several
  const int32_t* slots;  // the entry's pairs
  int rows;
  const uint8_t* q;  // row bytes of pair 0, high; low lies q_part bytes further
  int64_t q_pair, q_part;
  const float2* scale;  // of pair 0
  int64_t scale_pair;
  float* sums;  // of pair 0 at the strip's first output, first chunk
  int64_t sums_pair;
  int64_t sums_chunk = 0;  // where the unit has several
  bool streams;            // stream_hint()
};

// kChunks: several chunks of the inputs.
template <int K, int RG, bool kChunks>
__device__ __noinline__ void moe_unit(const MoeUnit& u, int first, int lane) {
  const auto* words = static_cast<const uint4*>(u.weight->trellis) + lane +
                      (int64_t{u.strip} * (u.weight->padded_in / 64) + 2 * u.begin) * (K * 32);
  Chunks<K, RG, kChunks> work;
  work.policy = stream_policy(u.streams);
  work.start(words);
  LaneRows<RG> in;
#pragma unroll
  for (int rg = 0; rg < RG; ++rg) {
    const int column = lane >> 2, last = u.rows - 1, row = first + 4 * rg;
    const int64_t qp = u.slots[min(row + (column >> 1), last)];
    const int64_t sp = u.slots[min(row + (lane & 3), last)];
    in.q[rg] = u.q + qp * u.q_pair + (column & 1) * u.q_part + u.begin * 128 + 16 * (lane & 3);
    in.scale[rg] = u.scale + sp * u.scale_pair + u.begin;
  }
  work.run(words, u.count, u.each, in, lane, [&](const ChunkSums<RG>& out, int last_block) {
    float* to = u.sums + (lane >> 2);
    if (kChunks) to += last_block / u.each * u.sums_chunk;
#pragma unroll
    for (int rg = 0; rg < RG; ++rg) {
      const int row = first + 4 * rg + (lane & 3);
      if (row >= u.rows) continue;
      float* at = to + u.slots[row] * u.sums_pair;
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) __stcg(at + 16 * i + 8 * h, out.v[rg][i][h]);
    }
  });
}

// Widths of 5 and 6 bits take rows above the fourth in a second pass: their registers are spent.
template <bool kEight, bool kChunks>
__device__ __forceinline__ void moe_run(const MoeUnit& u, int lane) {
  for (int first = 0; first < u.rows; first += 4) {
    const bool eight = kEight && u.rows - first > 4;
    switch (u.weight->half_bits) {
#define TF_CASE(K)                                          \
  case 2 * K:                                               \
    if (eight && K <= 4) {                                  \
      moe_unit<K, K <= 4 ? 2 : 1, kChunks>(u, first, lane); \
      first += 4;                                           \
    } else {                                                \
      moe_unit<K, 1, kChunks>(u, first, lane);              \
    }                                                       \
    break;
      TF_CASE(2)
      TF_CASE(3)
      TF_CASE(4)
      TF_CASE(5)
      TF_CASE(6)
#undef TF_CASE
      default:
        break;
    }
  }
}

// Which units a warp takes: the first by its place, spread over the multiprocessors, the others as
// it comes to them; asked for one unit ahead, since the answer takes a while.
struct MoeTickets {
  int32_t* counter;
  int next;

  __device__ __forceinline__ explicit MoeTickets(int32_t* c)
      : counter(c), next(static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x)) {}
  __device__ __forceinline__ void ask(int lane) {
    if (lane == 0) next = atomicAdd(counter, 1) + static_cast<int>(gridDim.x) * kMoeWarps;
  }
  __device__ __forceinline__ int take() const { return __shfl_sync(0xffffffffu, next, 0); }
};

// Publishes this warp's stores and counts it; true for the last of `of` warps, which then sees the
// stores of all.
__device__ __forceinline__ bool moe_last(int32_t* counter, int of, int lane) {
  __syncwarp();
  int before = 0;
  if (lane == 0)
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
  before = __shfl_sync(0xffffffffu, before, 0);
  return before + 1 >= of;
}

__device__ __forceinline__ void add4(float (&v)[4], const float4& s) {
  v[0] += s.x;
  v[1] += s.y;
  v[2] += s.z;
  v[3] += s.w;
}

}  // namespace tensorfold::cuda
