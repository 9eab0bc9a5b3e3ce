// Engram's gated addition (kernels/engram_gate.h): a block per row and stream.
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) engram_gate_kernel(EngramGateParams p) {
  extern __shared__ float scratch[];
  const int64_t r = blockIdx.x, h = p.hidden;
  const int c = static_cast<int>(blockIdx.y);
  const uint16_t* k = p.kv + (r * (p.hc + 1) + c) * h;
  const uint16_t* v = p.kv + (r * (p.hc + 1) + p.hc) * h;
  uint16_t* x = p.streams + (r * p.hc + c) * h;
  const float* qw = p.q_weight + c * h;
  const float* kw = p.k_weight + c * h;
  float dot = block_sum(p.hidden, scratch, [=](int i) {
    return (bf16_value(x[i]) * qw[i]) * (bf16_value(k[i]) * kw[i]);
  });
  const float xx = block_sum(p.hidden, scratch, [=](int i) {
    const float t = bf16_value(x[i]);
    return t * t;
  });
  const float kk = block_sum(p.hidden, scratch, [=](int i) {
    const float t = bf16_value(k[i]);
    return t * t;
  });
  const float inverse_x = inverse_rms(xx, p.hidden, p.eps);
  const float inverse_k = inverse_rms(kk, p.hidden, p.eps);
  dot = dot * (inverse_x * inverse_k) * (1.0f / sqrtf(static_cast<float>(p.hidden)));
  const float root = sqrtf(fmaxf(fabsf(dot), 1e-6f));
  float gate = sigmoid(copysignf(root, dot));
  if (p.dead != nullptr && p.dead[r] != 0) gate = 0;
  if (p.gates != nullptr && threadIdx.x == 0) p.gates[r * p.hc + c] = gate;
  if (gate == 0) return;
  for (int i = threadIdx.x; i < p.hidden; i += kThreads)
    x[i] = to_bf16(bf16_value(x[i]) + bf16_value(v[i]) * gate);
}

}  // namespace

void engram_gate(const EngramGateParams& p, Stream& stream) {
  if (p.rows == 0) return;
  CudaStream& s = cuda_stream(stream);
  engram_gate_kernel<<<dim3(p.rows, p.hc), kThreads, block_sum_floats(p.hidden) * 4, s.handle()>>>(
      p);
  s.launched("engram_gate", p.rows, p.hidden, p.hc);
}

}  // namespace tensorfold::cuda
