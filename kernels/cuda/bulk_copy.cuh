// Bulk copies into shared memory and the barriers that count their bytes: compute capability 9.0.
// Elsewhere the functions are not to be called.
//
// A stage of a ring has two barriers: "full" (the copies' bytes have arrived) and "empty" (its
// readers are done). Ring walks stages and the parity of their phase.
#pragma once

#include <cstdint>

namespace tensorfold::cuda {

// Whether the GPU being compiled for is of that kind; kernels for it stay empty elsewhere.
constexpr bool has_bulk_copies() {
#if defined(__CUDA_ARCH__)
  return __CUDA_ARCH__ / 100 == 9;
#else
  return true;
#endif
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After all inits of a thread, before the block meets.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives and announces bytes that copies will bring in this phase.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Returns when the phase of that parity is over. A fresh barrier's last phase has parity 1.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
      "@over bra done;\n"
      "bra again;\n"
      "done:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// `bytes` (a multiple of 16, both ends 16-byte aligned) to shared memory; counted at `barrier`.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Where a thread stands in a ring of kStages_ stages, kBytes bytes from one to the next. At
// `barriers`: full of every stage, then empty of every stage.
template <int kStages_, int kBytes>
struct Ring {
  static constexpr int kStages = kStages_;
  static constexpr int kBarrierBytes = 2 * kStages * 8;
  uint32_t base, barriers, stage = 0, parity = 0;

  __device__ __forceinline__ Ring(uint32_t base_, uint32_t barriers_)
      : base(base_), barriers(barriers_) {}
  __device__ __forceinline__ uint32_t at() const { return base + stage * kBytes; }
  __device__ __forceinline__ uint32_t full() const { return barriers + 8 * stage; }
  __device__ __forceinline__ uint32_t empty() const { return full() + 8 * kStages; }
  __device__ __forceinline__ void step() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace tensorfold::cuda
