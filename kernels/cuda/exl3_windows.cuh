// Windows of a lane's run of 32 codes (order "lanes") for products with the mul1 multiplier, fewer
// instructions than window_at and a mask.
//
// A window s of 16 bits that stands twice in a word, w = s (1 + 2^16), gives the same product
// modulo 2^32: w * kMul1Twice = s * kMul1, since (1 + 2^16)(1 - 2^16) = 1 there. So nothing must be
// masked: one byte permute takes a window that begins on a byte out of two neighbouring words.
// Windows whose offsets have the same remainder modulo 8 share shifted words. Instructions a
// window, 2 to 6 bits: 1.28, 1.72, 1.16, 1.88, 1.59; with masks 1.88, 1.94, 1.75, 1.94, 1.88.
#pragma once

#include "kernels/cuda/exl3_decode.cuh"

namespace tensorfold::cuda {

inline constexpr uint32_t kMul1Twice = kMul1 * 0xFFFF0001u;
static_assert(kMul1Twice * 0x00010001u == kMul1);

// twice[v], v = 0 .. 31, of run[1 .. K]; run[0] is the word before. K and every v are constants
// after unrolling: what is not used is not computed.
template <int K>
struct TwiceWindows {
  uint32_t word[K + 1];        // as they are
  uint32_t shifted[8][K + 1];  // [r]: bits r and up of (word, the one before)

  __device__ __forceinline__ explicit TwiceWindows(const uint32_t (&run)[K + 1]) {
#pragma unroll
    for (int j = 0; j <= K; ++j) word[j] = run[j];
#pragma unroll
    for (int r = 0; r < 8; ++r)
#pragma unroll
      for (int j = 0; j <= K; ++j)
        shifted[r][j] = r == 0   ? run[j]
                        : j == 0 ? run[0] >> r
                                 : __funnelshift_r(run[j], run[j - 1], static_cast<unsigned>(r));
  }
  __device__ __forceinline__ uint32_t at(int v) const {
    const int end = K * (v + 1), j = (end - 1) / 32 + 1, shift = 31 - (end - 1) % 32;
    const int r = shift % 8, byte = shift / 8;
    // Of 5 bits only two windows in four share a word: a shift of its own is as good.
    if (K == 5 && r != 0)
      return __byte_perm(__funnelshift_r(word[j], word[j - 1], static_cast<unsigned>(shift)), 0,
                         0x1010);
    if (byte == 3) return __byte_perm(shifted[r][j], shifted[r][j - 1], 0x4343);
    return __byte_perm(shifted[r][j], 0, byte == 0 ? 0x1010 : byte == 1 ? 0x2121 : 0x3232);
  }
};

}  // namespace tensorfold::cuda
