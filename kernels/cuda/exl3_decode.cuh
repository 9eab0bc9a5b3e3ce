// Device decode of EXL3 codes. Windows of 16 bits out of a lane's run of 32 values (order "lanes",
// exl3_layout.h), the codebooks, and a run-time decoder for every width, codebook and order.
//
// mul1: product x = s * 0x83DCD12D, value = fp16(1024 + sum of the bytes of x) * slope + offset
// with one rounding. Instruction count a weight (sm_90): the window 1 to 2, the product 1; then
// either nothing (bytes go straight into an integer matrix multiply) or the byte sum 1 and half a
// permute and half a packed multiply-add.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/weight_view.h"

namespace tensorfold::cuda {

inline constexpr uint32_t kMul1 = 0x83DCD12Du;
inline constexpr uint32_t kMcg = 0xCBAC1FEDu;
inline constexpr float kMul1Slope = 0.00676727294921875f;  // fp16 0x1EEE
// value = slope * (byte sum - kMul1Center) before its rounding to fp16: 10.3828125 / slope - 1024.
inline constexpr float kMul1Center = 510.26832018038334f;

// Window of value v in a run of K-bit codes: words[0] is the word before the run, words[1..K] the
// run. K and v are constants after unrolling, so one branch remains.
__device__ __forceinline__ uint32_t window_at(const uint32_t* words, int K, int v) {
  const int end = K * (v + 1), word = (end - 1) / 32, shift = 31 - (end - 1) % 32;
  const uint32_t low = words[word + 1];
  if (shift == 0) return low & 0xffffu;
  if (shift == 16) return low >> 16;
  if (shift < 16) {
    // A left shift as a product, then a right shift: the multiplier's pipe takes half of the work
    // that a shift and a mask would put on the logic pipe, which limits this decode.
    uint32_t top;
    asm("mul.lo.u32 %0, %1, %2;" : "=r"(top) : "r"(low), "r"(1u << (16 - shift)));
    return top >> 16;
  }
  return __funnelshift_r(low, words[word], static_cast<unsigned>(shift)) & 0xffffu;
}

__device__ __forceinline__ uint32_t byte_sum_1024(uint32_t x) {
  return __dp4a(x, 0x01010101u, 0x6400u);  // fp16 bits of 1024 + the sum of the four bytes
}

// Two mul1 values as fp16x2 from their states, `a` in the low half.
__device__ __forceinline__ uint32_t mul1_pair(uint32_t a, uint32_t b) {
  const uint32_t low = byte_sum_1024(a * kMul1), high = byte_sum_1024(b * kMul1);
  const uint32_t both = __byte_perm(low, high, 0x5410);
  const __half2 slope = __half2half2(__ushort_as_half(0x1EEE));
  const __half2 offset = __half2half2(__ushort_as_half(0xC931));
  const __half2 v = __hfma2(*reinterpret_cast<const __half2*>(&both), slope, offset);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// Any codebook: fp16 bits of a state.
__device__ __forceinline__ uint32_t codebook_value(uint32_t state, int codebook) {
  if (codebook == 2) return mul1_pair(state, state) & 0xffffu;
  uint32_t x = codebook == 1 ? state * kMcg : state * 89226354u + 64248484u;
  x = (x & 0x8FFF8FFFu) ^ 0x3B603B60u;
  const __half sum = __hadd(__ushort_as_half(static_cast<unsigned short>(x & 0xffffu)),
                            __ushort_as_half(static_cast<unsigned short>(x >> 16)));
  return __half_as_ushort(sum);
}

// Stream bit just after value p's new bits (half widths alternate floor and ceil).
__device__ __forceinline__ int exl3_end_bit(int half_bits, int p) {
  return (p / 2) * half_bits + ((p & 1) != 0 ? half_bits : half_bits / 2);
}

// Word `word` of tile (kt, nt) in either order.
__device__ __forceinline__ uint32_t exl3_word(const Exl3Parts& w, int kt, int nt, int word) {
  const auto* words = static_cast<const uint32_t*>(w.trellis);
  if (w.order == Exl3Order::kTiles) {
    const int64_t tile = int64_t{kt} * (w.padded_out / 16) + nt;
    return __ldg(words + tile * (4 * w.half_bits) + word);
  }
  const int bits = w.half_bits / 2;
  const int64_t unit = int64_t{nt / 4} * (w.padded_in / 64) + kt / 4;
  const int lane = 4 * (word / bits) + kt % 4;
  const int mine = (nt % 4) * bits + word % bits;
  return __ldg(words + ((unit * bits + mine / 4) * 32 + lane) * 4 + mine % 4);
}

// The run-time decoder: state of value p (stream order) of tile (kt, nt).
__device__ __forceinline__ uint32_t exl3_state(const Exl3Parts& w, int kt, int nt, int p) {
  const int words = 4 * w.half_bits;  // of a tile
  const int end = exl3_end_bit(w.half_bits, p);
  const int last = (end - 1) / 32, shift = 31 - (end - 1) % 32;
  const uint32_t low = exl3_word(w, kt, nt, last);
  if (shift <= 16) return (low >> shift) & 0xffffu;
  const uint32_t high = exl3_word(w, kt, nt, last == 0 ? words - 1 : last - 1);
  return __funnelshift_r(low, high, static_cast<unsigned>(shift)) & 0xffffu;
}

}  // namespace tensorfold::cuda
