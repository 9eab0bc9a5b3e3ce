// wgmma of sm_90a on bytes: 64 outputs (left operand in registers, unsigned) by 64 columns (shared
// memory, signed, as `b` describes) by 32 inputs, exact 32-bit sums. add 0: they begin anew.
#pragma once

#include <cstdint>

namespace tensorfold::cuda {

// clang-format off
#define TF_S8(i)                                                                              \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), \
      "+r"(d[i + 6]), "+r"(d[i + 7])
__device__ __forceinline__ void wgmma_u8(int (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                         int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, {%32,%33,%34,%35}, %36, add;\n}"
      : TF_S8(0), TF_S8(8), TF_S8(16), TF_S8(24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
#undef TF_S8
// clang-format on

}  // namespace tensorfold::cuda
