// Barriers in shared memory, bulk copies that count on them, and what the thread blocks of a
// cluster send each other.
#pragma once

#include <cstdint>

namespace tensorfold::cuda {

// Copies by the bulk engine, and the barriers that they complete on (shared memory).
__device__ __forceinline__ uint32_t shared_place(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the barriers' initialisation, before copies name them.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// All lanes, as a value that the compiler cannot see through. __syncwarp() with it, before one lane
// arrives for all, stays in the code also where no lane can have gone elsewhere: tools that look
// for races go by the instruction.
__device__ __forceinline__ uint32_t whole_warp() {
  uint32_t below, above;
  asm volatile("mov.u32 %0, %%lanemask_le;" : "=r"(below));
  asm volatile("mov.u32 %0, %%lanemask_gt;" : "=r"(above));
  return below | above;
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// The barrier's owner says how many bytes will come.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Codes, which are read once a step; policy: stream_policy().
__device__ __forceinline__ void bulk_load_codes(uint32_t to, const void* from, uint32_t bytes,
                                                uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A cluster's ranks: that all have begun, and stores into another rank's shared memory that count
// on a barrier there.
__device__ __forceinline__ void cluster_begun() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Place of this thread block's cluster in the grid, and how many there are.
__device__ __forceinline__ int cluster_index() {
  int index;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}
__device__ __forceinline__ int cluster_count() {
  int count;
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
  return count;
}
__device__ __forceinline__ uint32_t remote_place(uint32_t place, int rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(place), "r"(rank));
  return remote;
}
__device__ __forceinline__ void remote_store(uint32_t to, uint32_t v, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to), "r"(v),
      "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void remote_store(uint32_t to, const int4& v, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [%0], {%1,%2,%3,%4}, [%5];" ::
          "r"(to),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier)
      : "memory");
}

}  // namespace tensorfold::cuda
