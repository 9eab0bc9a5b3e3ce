// Expert choice (kernels/moe_route.h).
#include "kernels/moe_route.h"

#include <cmath>

#include "engine/base/check.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/order.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/simd.h"
#include "kernels/moe_experts.h"

namespace tensorfold::cpu {
namespace {

void route_row(const MoeRouteParams& p, int64_t r) {
  float* s = p.scores + r * p.experts;
  for (int e = 0; e < p.experts; ++e) s[e] = std::sqrt(simd::softplus(s[e] / p.temperature));
  const bool image = p.image != nullptr && p.image[r] != 0 && p.bias_vl != nullptr;
  const float* bias = image ? p.bias_vl : p.bias;
  int32_t* ids = p.ids + r * p.topk;
  float sum = 0;
  uint64_t last = ~uint64_t{0};
  for (int i = 0; i < p.topk; ++i) {  // the best below the last one taken
    uint64_t best = 0;
    for (int e = 0; e < p.experts; ++e) {
      const uint64_t rank = descending_rank(s[e] + bias[e], static_cast<uint32_t>(e));
      if (rank < last && rank > best) best = rank;
    }
    last = best;
    ids[i] = static_cast<int32_t>(rank_index(best));
    sum += s[ids[i]];
  }
  for (int i = 0; i < p.topk; ++i) p.weights[r * p.topk + i] = s[ids[i]] / (sum + 1e-20f) * p.scale;
}

}  // namespace

void moe_route(const MoeRouteParams& p, Stream& stream) {
  CpuStream& cpu = cpu_stream(stream);
  TF_CHECK_LE(p.topk, p.experts);
  Arena arena(p.workspace);
  double* x = arena.take<double>(int64_t{p.rows} * p.hidden);
  cpu.parallel_for(p.rows, int64_t{p.rows} * p.hidden * 2, [&](int64_t r, int) {
    double* row = x + r * p.hidden;
    widen_bf16(p.x + r * p.hidden, p.hidden, narrow_half(row, p.hidden));
    widen_half(row, p.hidden);
  });
  DenseJob job;
  job.w = p.gate;
  job.x = x;
  job.x_stride = p.hidden;
  job.rows = p.rows;
  job.y = p.scores;
  job.y_stride = p.experts;
  dense(&job, 1, cpu);
  const int64_t work = int64_t{p.rows} * p.experts * (60 + 2 * p.topk);
  cpu.parallel_for(p.rows, work, [&](int64_t r, int) { route_row(p, r); });
}

}  // namespace tensorfold::cpu
