// rope_table: cosines and sines of rotary position embedding for a list of positions, and the
// frequencies that they come from.
//
// Formula (docs/model.md 2.1): angle = fp32(position) * f_k in fp32; pair (2k, 2k+1) is
// (real, imag). f_k = 1 / theta^(2k / dim) in fp32; with YaRN f'_k = f_k / factor * m_k +
// f_k * (1 - m_k), m_k = clamp((k - lo) / (hi - lo), 0, 1), lo = floor(c(beta_fast)),
// hi = ceil(c(beta_slow)), c(r) = dim * ln(original / (2 pi r)) / (2 ln theta).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/op.h"

namespace tensorfold {

struct RopeYarn {
  double factor = 16;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_positions = 65536;
};

// dim / 2 frequencies. yarn == nullptr: plain.
std::vector<float> rope_frequencies(double theta, int dim, const RopeYarn* yarn);

struct RopeTableParams {
  int rows = 0;
  int pairs = 0;                       // rotated channels / 2
  const int64_t* positions = nullptr;  // [rows]
  const float* freqs = nullptr;        // [pairs]
  float* table = nullptr;              // [rows, pairs, 2] (cos, sin)
};

inline OpCost rope_table_cost(const RopeTableParams& p) {
  return {int64_t{p.rows} * p.pairs * 8, int64_t{p.rows} * p.pairs * 40};
}

namespace cpu {
void rope_table(const RopeTableParams& p, Stream& stream);
}
}  // namespace tensorfold
