// Rotary tables (kernels/rope.h).
#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace tensorfold {
namespace {

// Channel index at which a rotation makes `turns` turns over the original context.
double correction_channel(double turns, int dim, double theta, const RopeYarn& yarn) {
  const double length = static_cast<double>(yarn.original_positions);
  return dim * std::log(length / (2.0 * std::numbers::pi * turns)) / (2.0 * std::log(theta));
}

}  // namespace

std::vector<float> rope_frequencies(double theta, int dim, const RopeYarn* yarn) {
  std::vector<float> freqs(static_cast<size_t>(dim / 2));
  for (int k = 0; k < dim / 2; ++k) {
    const float exponent = static_cast<float>(2 * k) / static_cast<float>(dim);
    freqs[static_cast<size_t>(k)] = 1.0f / static_cast<float>(std::pow(theta, double{exponent}));
  }
  if (yarn == nullptr) return freqs;
  const double low = std::floor(correction_channel(yarn->beta_fast, dim, theta, *yarn));
  const double high = std::ceil(correction_channel(yarn->beta_slow, dim, theta, *yarn));
  const auto lo = static_cast<float>(std::max(low, 0.0));
  const auto hi = static_cast<float>(std::min(high, static_cast<double>(dim - 1)));
  const float width = hi == lo ? 0.001f : hi - lo;
  for (int k = 0; k < dim / 2; ++k) {
    float& f = freqs[static_cast<size_t>(k)];
    const float ramp = std::clamp((static_cast<float>(k) - lo) / width, 0.0f, 1.0f);
    const float smooth = 1.0f - ramp;
    f = f / static_cast<float>(yarn->factor) * (1.0f - smooth) + f * smooth;
  }
  return freqs;
}

namespace cpu {

void rope_table(const RopeTableParams& p, Stream& stream) {
  cpu_stream(stream).parallel_for(p.rows, rope_table_cost(p).operations, [&](int64_t r, int) {
    const auto position = static_cast<float>(p.positions[r]);
    float* out = p.table + r * p.pairs * 2;
    for (int k = 0; k < p.pairs; ++k)
      simd::sincos(position * p.freqs[k], out[2 * k + 1], out[2 * k]);
  });
}

}  // namespace cpu
}  // namespace tensorfold
