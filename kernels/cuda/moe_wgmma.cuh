// Instructions of the MoE of generated rows: barriers in shared memory that count bytes and
// arrivals, and wgmma on bytes (sm_90a), left operand in registers.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TF_GROUP_WGMMA 1
#else
#define TF_GROUP_WGMMA 0
#endif

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

#if TF_GROUP_WGMMA
// Eight columns of the right operand are 256 bytes: two halves of 16 inputs'
// bytes, 128 bytes apart.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (uint64_t{128 >> 4} << 16) |
         (uint64_t{256 >> 4} << 32);
}
// first: the sums begin here.
__device__ __forceinline__ void wgmma_u8s8(int (&d)[4], const uint32_t (&a)[4], uint64_t b,
                                           bool first) {
  if (first)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.s8 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 0;"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  else
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.s8 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1;"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_u8s8(int (&d)[8], const uint32_t (&a)[4], uint64_t b,
                                           bool first) {
  if (first)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 "
        "{%0,%1,%2,%3,%4,%5,%6,%7}, "
        "{%8,%9,%10,%11}, %12, 0;"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]),
          "=r"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  else
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 "
        "{%0,%1,%2,%3,%4,%5,%6,%7}, "
        "{%8,%9,%10,%11}, %12, 1;"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
          "+r"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
#endif

}  // namespace tensorfold::cuda
