// Routed and shared experts (kernels/moe_experts.h).
//
// Rows are taken kMoeRowsAtOnce at a time. Their (row, expert) pairs are sorted by expert, so that
// an expert's weights are read once for all of its rows; the shared expert is one more expert that
// every row picks. The sum over a row's experts is made last, ascending by id.
#include "kernels/moe_experts.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/simd.h"
#include "kernels/formats.h"

namespace tensorfold {
namespace {

constexpr int kMoeRowsAtOnce = 256;

int64_t pairs_max(int rows, int topk) {
  return int64_t{std::min(rows, kMoeRowsAtOnce)} * (topk + 1);
}

}  // namespace

int64_t moe_experts_workspace_bytes(int rows, int hidden, int intermediate, int experts, int topk) {
  using cpu::Arena;
  const int64_t n = pairs_max(rows, topk);
  return 3 * Arena::padded(n * hidden * 4) + 4 * Arena::padded(n * intermediate * 4) +
         2 * Arena::padded(n * 4) + Arena::padded(int64_t{experts + 2} * 4) +
         Arena::padded((2 * int64_t{experts} + 2) * static_cast<int64_t>(sizeof(cpu::DenseJob)));
}

namespace cpu {

using simd::F16;

// z = bf16((silu(g) * u) * w), g and u rounded to bf16 and clamped; in g's place.
TF_CLONES void swiglu_row(float* g, const float* u, float weight, float limit, int n) {
  for (int i = 0; i < n; i += 16) {
    F16 gv = simd::round_to_bf16(simd::load(g + i));
    F16 uv = simd::round_to_bf16(simd::load(u + i));
    gv = gv > limit ? simd::splat(limit) : gv;
    uv = uv > limit ? simd::splat(limit) : uv;
    uv = uv < -limit ? simd::splat(-limit) : uv;
    const F16 silu = gv / (1.0f + simd::exp(-gv));
    simd::store(g + i, simd::round_to_bf16((silu * uv) * weight));
  }
}

TF_CLONES void add_row(float* sum, const float* y, bool rounded, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const F16 v = simd::load(y + i);
    simd::store(sum + i, simd::load(sum + i) + (rounded ? simd::round_to_bf16(v) : v));
  }
}

namespace {

// The pairs of one group of rows, by expert; experts[experts] is the shared one.
struct Group {
  int first_row = 0;
  int rows = 0;
  int pairs = 0;
  int32_t* begin;     // [experts + 2] first pair of each expert
  int32_t* pair_row;  // [pairs] row within the group
  int32_t* place;     // [rows][topk + 1] pair of the row's i-th pick; the shared one last; -1: none
  double* x;          // [pairs, H]
  float* y;           // [pairs, H]
  float* g;           // [pairs, I]
  float* u;           // [pairs, I]
  double* z;          // [pairs, I]
  DenseJob* jobs;
};

const ExpertWeights* weights_of(const MoeExpertsParams& p, int e) {
  const ExpertWeights* w = e < p.experts ? p.expert + e : p.shared;
  return w != nullptr && w->w1.present() ? w : nullptr;
}

float pair_weight(const MoeExpertsParams& p, int64_t row, int e) {
  if (e == p.experts) return 1.0f;
  for (int i = 0; i < p.topk; ++i)
    if (p.ids[row * p.topk + i] == e) return p.weights[row * p.topk + i];
  return 0.0f;
}

void sort_pairs(const MoeExpertsParams& p, Group& g) {
  std::fill(g.begin, g.begin + p.experts + 2, 0);
  for (int r = 0; r < g.rows; ++r)
    for (int i = 0; i < p.topk; ++i) {
      const int e = p.ids[int64_t{g.first_row + r} * p.topk + i];
      if (weights_of(p, e) != nullptr) ++g.begin[e + 1];
    }
  g.begin[p.experts + 1] = weights_of(p, p.experts) != nullptr ? g.rows : 0;
  for (int e = 0; e <= p.experts; ++e) g.begin[e + 1] += g.begin[e];
  g.pairs = g.begin[p.experts + 1];
  for (int r = 0; r < g.rows; ++r)
    for (int i = 0; i <= p.topk; ++i) {
      const int e = i == p.topk ? p.experts : p.ids[int64_t{g.first_row + r} * p.topk + i];
      int32_t& place = g.place[r * (p.topk + 1) + i];
      place = weights_of(p, e) != nullptr ? g.begin[e]++ : -1;
      if (place >= 0) g.pair_row[place] = r;
    }
  for (int e = p.experts + 1; e > 0; --e) g.begin[e] = g.begin[e - 1];  // undo the advance
  g.begin[0] = 0;
}

void gate_and_up(const MoeExpertsParams& p, Group& g, CpuStream& cpu) {
  const int64_t h = p.hidden;
  cpu.parallel_for(g.pairs, g.pairs * h * 10, [&](int64_t i, int) {
    const int e = static_cast<int>(std::upper_bound(g.begin, g.begin + p.experts + 2, i) - g.begin);
    double* x = g.x + i * h;
    float* values = narrow_half(x, h);
    widen_bf16(p.x + (g.first_row + g.pair_row[i]) * h, h, values);
    if (weights_of(p, e - 1)->w1.quantise_input) fake_quantise_fp8(values, p.hidden, values);
    widen_half(x, h);
  });
  int jobs = 0;
  for (int e = 0; e <= p.experts; ++e) {
    const int rows = g.begin[e + 1] - g.begin[e];
    if (rows == 0) continue;
    const ExpertWeights& w = *weights_of(p, e);
    TF_CHECK_EQ(w.w1.quantise_input, w.w3.quantise_input);
    for (int k = 0; k < 2; ++k) {
      DenseJob& job = g.jobs[jobs++] = DenseJob{};
      job.w = k == 0 ? &w.w1 : &w.w3;
      job.x = g.x + g.begin[e] * h;
      job.x_stride = h;
      job.rows = rows;
      job.y = (k == 0 ? g.g : g.u) + int64_t{g.begin[e]} * p.intermediate;
      job.y_stride = p.intermediate;
    }
  }
  dense(g.jobs, jobs, cpu);
}

void down(const MoeExpertsParams& p, Group& g, CpuStream& cpu) {
  const int64_t n = p.intermediate;
  cpu.parallel_for(g.pairs, g.pairs * n * 40, [&](int64_t i, int) {
    const int e =
        static_cast<int>(std::upper_bound(g.begin, g.begin + p.experts + 2, i) - g.begin) - 1;
    const float weight = pair_weight(p, g.first_row + g.pair_row[i], e);
    swiglu_row(g.g + i * n, g.u + i * n, weight, p.swiglu_limit, p.intermediate);
    float* z = narrow_half(g.z + i * n, n);
    if (weights_of(p, e)->w2.quantise_input)
      fake_quantise_fp8(g.g + i * n, p.intermediate, z);
    else
      std::copy_n(g.g + i * n, n, z);
    widen_half(g.z + i * n, n);
  });
  int jobs = 0;
  for (int e = 0; e <= p.experts; ++e) {
    const int rows = g.begin[e + 1] - g.begin[e];
    if (rows == 0) continue;
    DenseJob& job = g.jobs[jobs++] = DenseJob{};
    job.w = &weights_of(p, e)->w2;
    job.x = g.z + g.begin[e] * n;
    job.x_stride = n;
    job.rows = rows;
    job.y = g.y + int64_t{g.begin[e]} * p.hidden;
    job.y_stride = p.hidden;
  }
  dense(g.jobs, jobs, cpu);
}

void sum_row(const MoeExpertsParams& p, const Group& g, int r) {
  float* sum = p.y + int64_t{g.first_row + r} * p.hidden;
  std::memset(sum, 0, static_cast<size_t>(p.hidden) * 4);
  int32_t order[kExpertsPerTokenMax + 1];  // pairs ascend with the expert id, the shared one last
  std::copy_n(g.place + r * (p.topk + 1), p.topk + 1, order);
  std::sort(order, order + p.topk + 1);
  for (int i = 0; i <= p.topk; ++i)
    if (order[i] >= 0) add_row(sum, g.y + order[i] * int64_t{p.hidden}, p.round_outputs, p.hidden);
}

}  // namespace

void moe_experts(const MoeExpertsParams& p, Stream& stream) {
  TF_CHECK_LE(p.topk, kExpertsPerTokenMax);
  CpuStream& cpu = cpu_stream(stream);
  for (int first = 0; first < p.rows; first += kMoeRowsAtOnce) {
    Group g;
    g.first_row = first;
    g.rows = std::min(kMoeRowsAtOnce, p.rows - first);
    const int64_t n = pairs_max(g.rows, p.topk);
    Arena arena(p.workspace);
    g.begin = arena.take<int32_t>(p.experts + 2);
    g.pair_row = arena.take<int32_t>(n);
    g.place = arena.take<int32_t>(n);
    g.x = arena.take<double>(n * p.hidden);
    g.y = arena.take<float>(n * p.hidden);
    g.g = arena.take<float>(n * p.intermediate);
    g.u = arena.take<float>(n * p.intermediate);
    g.z = arena.take<double>(n * p.intermediate);
    g.jobs = arena.take<DenseJob>(2 * int64_t{p.experts} + 2);
    sort_pairs(p, g);
    gate_and_up(p, g, cpu);
    down(p, g, cpu);
    cpu.parallel_for(g.rows, int64_t{g.pairs} * p.hidden,
                     [&](int64_t r, int) { sum_row(p, g, static_cast<int>(r)); });
  }
}

}  // namespace cpu
}  // namespace tensorfold
