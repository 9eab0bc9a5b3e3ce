// Engram's gated addition (kernels/engram_gate.h).
#include "kernels/engram_gate.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace tensorfold::cpu {

using simd::F16;

// Sums of x * qw * kw * k, x * x and k * k.
TF_CLONES void engram_sums(const uint16_t* x, const uint16_t* k, const float* qw, const float* kw,
                           int64_t n, float* dot, float* xx, float* kk) {
  simd::CascadeSum d, sx, sk;
  for (int64_t i = 0; i < n; i += 32) {
    const F16 x0 = simd::load_bf16(x + i), x1 = simd::load_bf16(x + i + 16);
    const F16 k0 = simd::load_bf16(k + i), k1 = simd::load_bf16(k + i + 16);
    d.add((x0 * simd::load(qw + i)) * (k0 * simd::load(kw + i)),
          (x1 * simd::load(qw + i + 16)) * (k1 * simd::load(kw + i + 16)));
    sx.add(x0 * x0, x1 * x1);
    sk.add(k0 * k0, k1 * k1);
  }
  *dot = d.total();
  *xx = sx.total();
  *kk = sk.total();
}

TF_CLONES void engram_add(uint16_t* x, const uint16_t* v, float gate, int64_t n) {
  for (int64_t i = 0; i < n; i += 16)
    simd::store_bf16(x + i, simd::load_bf16(x + i) + simd::load_bf16(v + i) * gate);
}

void engram_gate(const EngramGateParams& p, Stream& stream) {
  const int64_t h = p.hidden;
  const auto width = static_cast<float>(p.hidden);
  cpu_stream(stream).parallel_for(p.rows, p.rows * p.hc * h * 12, [&](int64_t r, int) {
    const uint16_t* kv = p.kv + r * (p.hc + 1) * h;
    for (int c = 0; c < p.hc; ++c) {
      uint16_t* x = p.streams + (r * p.hc + c) * h;
      float dot = 0, xx = 0, kk = 0;
      engram_sums(x, kv + c * h, p.q_weight + c * h, p.k_weight + c * h, h, &dot, &xx, &kk);
      const float inverse_x = 1.0f / std::sqrt(xx / width + p.eps);
      const float inverse_k = 1.0f / std::sqrt(kk / width + p.eps);
      dot = dot * (inverse_x * inverse_k) * (1.0f / std::sqrt(width));
      float gate = simd::sigmoid(std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6f)), dot));
      if (p.dead != nullptr && p.dead[r] != 0) gate = 0;
      if (p.gates != nullptr) p.gates[r * p.hc + c] = gate;
      if (gate != 0) engram_add(x, kv + p.hc * h, gate, h);
    }
  });
}

}  // namespace tensorfold::cpu
