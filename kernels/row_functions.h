// Functions on single rows that the CPU operations are made of, as something that can be called
// from outside: `tfctl model eval --units` and tests compare them with recorded vectors. They call
// the very functions that the operations call; nothing else should use them.
#pragma once

#include <cstdint>

namespace tensorfold {

// y [n] = bf16(w * (x * rsqrt(mean(x^2) + eps))); n a multiple of 16.
void cpu_rms_norm_row(const float* x, const float* w, int n, float eps, float* y);

// Rotates x [n] by table [n / 2, 2] (cos, sin), rounded to bf16; inverse: by the conjugate.
void cpu_rotate_row(float* x, int n, const float* table, bool inverse);

// pooled [d] = bf16(sum_i softmax_i(g_i) a_i), i over two positions, per channel.
void cpu_pool_pair(const float* a0, const float* g0, const float* a1, const float* g1, int d,
                   float* pooled);

}  // namespace tensorfold
