// Rotary tables (kernels/rope.h), with the CPU's sine and cosine: the same bits.
#include "kernels/cuda/ops.h"

namespace tensorfold::cuda {
namespace {

__device__ void sine_cosine(float angle, float& sine, float& cosine) {
  const double x = angle;
  const double magic = 6755399441055744.0;  // 1.5 * 2^52
  const double t = x * 0x1.45f306dc9c883p-1 + magic;
  const double n = t - magic;
  const double r = ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
  const double r2 = r * r;
  double s = -1.0 / 1307674368000.0;
  s = s * r2 + 1.0 / 6227020800.0;
  s = s * r2 - 1.0 / 39916800.0;
  s = s * r2 + 1.0 / 362880.0;
  s = s * r2 - 1.0 / 5040.0;
  s = s * r2 + 1.0 / 120.0;
  s = s * r2 - 1.0 / 6.0;
  s = s * r2 * r + r;
  double c = 1.0 / 20922789888000.0;
  c = c * r2 - 1.0 / 87178291200.0;
  c = c * r2 + 1.0 / 479001600.0;
  c = c * r2 - 1.0 / 3628800.0;
  c = c * r2 + 1.0 / 40320.0;
  c = c * r2 - 1.0 / 720.0;
  c = c * r2 + 1.0 / 24.0;
  c = c * r2 - 0.5;
  c = c * r2 + 1.0;
  const auto quadrant = static_cast<unsigned>(__double_as_longlong(t)) & 3u;
  const double sq = (quadrant & 1u) != 0 ? c : s;
  const double cq = (quadrant & 1u) != 0 ? s : c;
  sine = static_cast<float>((quadrant & 2u) != 0 ? -sq : sq);
  cosine = static_cast<float>(((quadrant + 1u) & 2u) != 0 ? -cq : cq);
}

__global__ void rope_table_kernel(RopeTableParams p) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= int64_t{p.rows} * p.pairs) return;
  const int64_t r = i / p.pairs;
  const auto position = static_cast<float>(p.positions[r]);
  sine_cosine(position * p.freqs[i % p.pairs], p.table[2 * i + 1], p.table[2 * i]);
}

}  // namespace

void rope_table(const RopeTableParams& p, Stream& stream) {
  constexpr int kThreads = 128;
  if (p.rows == 0) return;
  CudaStream& s = cuda_stream(stream);
  rope_table_kernel<<<blocks_of(int64_t{p.rows} * p.pairs, kThreads), kThreads, 0, s.handle()>>>(p);
  s.launched("rope_table", p.rows, p.pairs);
}

}  // namespace tensorfold::cuda
