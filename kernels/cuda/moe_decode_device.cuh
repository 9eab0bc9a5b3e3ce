// What the launches of a MoE share: their argument and the way in which warps
// find out who is last.
#pragma once

#include "kernels/cuda/exl3_rotate.cuh"
#include "kernels/cuda/moe_decode.h"
#include "kernels/cuda/moe_plan.h"

namespace tensorfold::cuda {

// The begin of the work list.
inline constexpr int kShortList = 64;
struct ShortList {
  MoeEntry entries[kShortList];
  int32_t slots[kShortList];
};

struct MoeDecodeArgs {
  MoeDecodeParams p;
  MoeDecodeLayout l;
  MoeCut gate, down;
  int entry_rows;  // rows of an entry at most: 4 or 8
  int multiprocessors;

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

cudaError_t launch_moe_gate_up(const MoeDecodeArgs& args, cudaStream_t stream);
cudaError_t launch_moe_down(const MoeDecodeArgs& args, cudaStream_t stream);

// Publishes this warp's stores and counts it; true for the last of `of` warps,
// which then sees the stores of all.
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
