// Hyper-connections between sublayers (kernels/hc_step.h), in the header's order.
#include "kernels/hc_step.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/hc_coefficients.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/simd.h"

namespace tensorfold {
namespace {
constexpr int kHcRowsAtOnce = 256;  // rows whose widened streams are held at a time
}

int64_t hc_step_workspace_bytes(int rows, int hidden, int hc) {
  const int64_t n = std::min(rows, kHcRowsAtOnce);
  return cpu::Arena::padded(n * hc * hidden * 8) + cpu::Arena::padded(n * hidden * 4) +
         cpu::Arena::padded(n * 4);
}

namespace cpu {

using simd::F16;

// 1. X[k] = post[k] * bf16(y) + sum_j comb[j][k] * X[j] for one row.
TF_CLONES void hc_mix_row(uint16_t* x, const float* y, const float* post, const float* comb, int hc,
                          int64_t hidden) {
  for (int64_t i = 0; i < hidden; i += 16) {
    const F16 yv = simd::round_to_bf16(simd::load(y + i));
    F16 xv[kHcMax];
    for (int j = 0; j < hc; ++j) xv[j] = simd::load_bf16(x + j * hidden + i);
    for (int k = 0; k < hc; ++k) {
      F16 sum = xv[0] * comb[k];
      for (int j = 1; j < hc; ++j) sum += xv[j] * comb[j * hc + k];
      simd::store_bf16(x + k * hidden + i, yv * post[k] + sum);
    }
  }
}

// 2. Mean over streams.
TF_CLONES void hc_tap_row(const uint16_t* x, int hc, int64_t hidden, uint16_t* tap) {
  for (int64_t i = 0; i < hidden; i += 16) {
    F16 sum = simd::load_bf16(x + i);
    for (int c = 1; c < hc; ++c) sum += simd::load_bf16(x + c * hidden + i);
    simd::store_bf16(tap + i, sum / static_cast<float>(hc));
  }
}

// 3. Coefficients of one row from its mixes.
void hc_coefficients(const float* mixes, const float* scale, const float* base, int n, int iters,
                     float eps, float* pre, float* post, float* comb) {
  for (int k = 0; k < n; ++k) {
    pre[k] = simd::sigmoid(mixes[k] * scale[0] + base[k]) + eps;
    post[k] = 2.0f * simd::sigmoid(mixes[n + k] * scale[1] + base[n + k]);
  }
  for (int j = 0; j < n; ++j) {  // softmax over k
    float* row = comb + j * n;
    float largest = -INFINITY, sum = 0;
    for (int k = 0; k < n; ++k) {
      const int i = 2 * n + j * n + k;
      row[k] = mixes[i] * scale[2] + base[i];
      largest = std::max(largest, row[k]);
    }
    for (int k = 0; k < n; ++k) sum += row[k] = simd::exp(row[k] - largest);
    for (int k = 0; k < n; ++k) row[k] = row[k] / sum + eps;
  }
  for (int pass = 0; pass < iters; ++pass) {
    for (int j = 0; j < n && pass > 0; ++j) {  // rows; the first pass is columns only
      float sum = 0;
      for (int k = 0; k < n; ++k) sum += comb[j * n + k];
      for (int k = 0; k < n; ++k) comb[j * n + k] /= sum + eps;
    }
    for (int k = 0; k < n; ++k) {
      float sum = 0;
      for (int j = 0; j < n; ++j) sum += comb[j * n + k];
      for (int j = 0; j < n; ++j) comb[j * n + k] /= sum + eps;
    }
  }
}

namespace {

void coefficients(const HcStepParams& p, int64_t first, int rows, Arena arena, CpuStream& cpu) {
  const int64_t width = int64_t{p.hc} * p.hidden;
  const int outs = (2 + p.hc) * p.hc;
  double* v = arena.take<double>(rows * width);
  float* inverse_rms = arena.take<float>(rows);
  cpu.parallel_for(rows, rows * width * 3, [&](int64_t r, int) {
    float* values = narrow_half(v + r * width, width);
    widen_bf16(p.streams + (first + r) * width, width, values);
    inverse_rms[r] = 1.0f / std::sqrt(mean_square(values, width) + p.norm_eps);
    widen_half(v + r * width, width);
  });
  DenseJob job;
  job.w = p.fn;
  job.x = v;
  job.x_stride = width;
  job.rows = rows;
  job.y = p.mixes + first * outs;
  job.y_stride = outs;
  dense(&job, 1, cpu);
  cpu.parallel_for(rows, int64_t{rows} * outs * p.sinkhorn_iters * 8, [&](int64_t i, int) {
    const int64_t r = first + i;
    float* m = p.mixes + r * outs;
    for (int k = 0; k < outs; ++k) m[k] *= inverse_rms[i];
    hc_coefficients(m, p.scale, p.base, p.hc, p.sinkhorn_iters, p.hc_eps, p.pre_out + r * p.hc,
                    p.post_out + r * p.hc, p.comb_out + r * p.hc * p.hc);
  });
}

void collapse_rows(const HcStepParams& p, int64_t first, int rows, Arena arena, CpuStream& cpu) {
  const int64_t width = int64_t{p.hc} * p.hidden;
  float* h = arena.take<float>(int64_t{rows} * p.hidden);
  cpu.parallel_for(rows, rows * width * 3, [&](int64_t i, int) {
    const int64_t r = first + i;
    float* row = h + i * p.hidden;
    collapse(p.streams + r * width, p.pre_in + r * p.hc, p.hc, p.hidden, row);
    if (p.collapsed != nullptr) narrow_bf16(row, p.hidden, p.collapsed + r * p.hidden);
    if (p.normed == nullptr) return;
    rms_norm(row, p.norm_weight, p.hidden, p.norm_eps, row);
    narrow_bf16(row, p.hidden, p.normed + r * p.hidden);
  });
}

}  // namespace

void hc_step(const HcStepParams& p, Stream& stream) {
  TF_CHECK_LE(p.hc, kHcMax);
  CpuStream& cpu = cpu_stream(stream);
  const int64_t width = int64_t{p.hc} * p.hidden;
  if (p.y != nullptr || p.tap != nullptr) {
    cpu.parallel_for(p.rows, p.rows * width * 2 * (p.hc + 1), [&](int64_t r, int) {
      uint16_t* x = p.streams + r * width;
      if (p.y != nullptr)
        hc_mix_row(x, p.y + r * p.hidden, p.post_in + r * p.hc, p.comb_in + r * p.hc * p.hc, p.hc,
                   p.hidden);
      if (p.tap != nullptr) hc_tap_row(x, p.hc, p.hidden, p.tap + r * p.tap_stride);
    });
  }
  for (int first = 0; first < p.rows; first += kHcRowsAtOnce) {
    const int rows = std::min(kHcRowsAtOnce, p.rows - first);
    if (p.fn != nullptr) coefficients(p, first, rows, Arena(p.workspace), cpu);
    if (p.normed != nullptr || p.collapsed != nullptr)
      collapse_rows(p, first, rows, Arena(p.workspace), cpu);
  }
}

}  // namespace cpu
}  // namespace tensorfold
