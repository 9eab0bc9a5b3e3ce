// Engram's gated addition (kernels/engram_gate.h).
#include "kernels/engram_gate.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace tensorfold::cpu {

using simd::F16;

// sum(x * qw * kw * k), mean-square sums of x and k.
TF_CLONES void engram_dot(const uint16_t* x, const uint16_t* k, const float* qw, const float* kw,
                          int64_t n, float* dot, float* xx, float* kk) {
  F16 d{}, sx{}, sk{};
  for (int64_t i = 0; i < n; i += 16) {
    const F16 xv = simd::load_bf16(x + i), kv = simd::load_bf16(k + i);
    d += (xv * simd::load(qw + i)) * (kv * simd::load(kw + i));
    sx += xv * xv;
    sk += kv * kv;
  }
  *dot = simd::sum_lanes(d);
  *xx = simd::sum_lanes(sx);
  *kk = simd::sum_lanes(sk);
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
      engram_dot(x, kv + c * h, p.q_weight + c * h, p.k_weight + c * h, h, &dot, &xx, &kk);
      dot = dot * (1.0f / std::sqrt(xx / width + p.eps)) * (1.0f / std::sqrt(kk / width + p.eps)) *
            (1.0f / std::sqrt(width));
      float gate = simd::sigmoid(std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6f)), dot));
      if (p.dead != nullptr && p.dead[r] != 0) gate = 0;
      if (p.gates != nullptr) p.gates[r * p.hc + c] = gate;
      if (gate != 0) engram_add(x, kv + p.hc * h, gate, h);
    }
  });
}

}  // namespace tensorfold::cpu
