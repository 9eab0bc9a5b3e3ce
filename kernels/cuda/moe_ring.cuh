// Barriers in shared memory that count bytes and arrivals, and places in rings of them.
#pragma once

#include <cstdint>

namespace tensorfold::cuda {

__device__ __forceinline__ uint32_t group_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void barrier_init(uint64_t* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(group_address(b)), "r"(count));
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(group_address(b)) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, int parity) {
  uint32_t done = 0;
  int tries = 0;
  do {
    if (++tries > (1 << 20)) __trap();
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(group_address(b)), "r"(parity)
        : "memory");
  } while (done == 0);
}

// Lane 0's look at a barrier, told to the warp.
__device__ __forceinline__ bool barrier_passed(uint64_t* b, int parity) {
  uint32_t done = 0;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(group_address(b)), "r"(parity)
      : "memory");
  return __shfl_sync(0xffffffffu, done, 0) != 0;
}
// Bytes of global memory into shared memory; the barrier counts them.
__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(group_address(b)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_bulk(void* to, const void* from, int bytes, uint64_t* b) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(group_address(to)),
      "l"(from), "r"(bytes), "r"(group_address(b))
      : "memory");
}

// Where a thread stands in the ring.
template <int kSlots>
struct Place {
  int slot = 0, parity = 0;
  __device__ __forceinline__ void next() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

}  // namespace tensorfold::cuda
