// See kernels/row_functions.h.
#include "kernels/row_functions.h"

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_ops.h"

namespace tensorfold {
namespace cpu {

// kernels/cpu/attention_append.cc
void pool_pair(const float* a0, const float* g0, const float* a1, const float* g1, int d,
               float* pooled);

}  // namespace cpu

void cpu_rms_norm_row(const float* x, const float* w, int n, float eps, float* y) {
  cpu::rms_norm(x, w, n, eps, y);
}

void cpu_rotate_row(float* x, int n, const float* table, bool inverse) {
  cpu::rotate(x, n, n, table, inverse);
}

void cpu_pool_pair(const float* a0, const float* g0, const float* a1, const float* g1, int d,
                   float* pooled) {
  cpu::pool_pair(a0, g0, a1, g1, d, pooled);
}

}  // namespace tensorfold
