// Thread block clusters (compute capability 9.0): one copy for several blocks, arrivals at another
// block's barrier.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"

namespace tensorfold::cuda {

// Whether one copy can go to several blocks of a cluster: sm_90a.
constexpr bool has_multicast() {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
  return false;
#else
  return true;
#endif
}

// At the barrier in the same place of thread block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// To the same place of every thread block of the cluster whose bit is in `ranks`, counted at each
// one's barrier; without multicast only here.
__device__ __forceinline__ void bulk_copy_to(uint32_t to, const void* from, uint32_t bytes,
                                             uint32_t barrier, uint16_t ranks) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(ranks)
      : "memory");
#else
  (void)ranks;
  bulk_copy(to, from, bytes, barrier);
#endif
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of the cluster's blocks meet.
__device__ __forceinline__ void cluster_meet() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;\n" ::
          : "memory");
}
// `threads` threads of the block (whole warps) meet; 0 is __syncthreads.
template <int kId, int kThreads>
__device__ __forceinline__ void part_meet() {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}

}  // namespace tensorfold::cuda
