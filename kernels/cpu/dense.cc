// Panel matrix product (kernels/cpu/dense.h).
#include "kernels/cpu/dense.h"

#include <algorithm>

#include "engine/base/check.h"
#include "kernels/cpu/simd.h"
#include "kernels/formats.h"

namespace tensorfold::cpu {
namespace {

using simd::F16;

typedef double D8 __attribute__((vector_size(64)));
typedef float F8 __attribute__((vector_size(32)));
typedef float F8u __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t U8 __attribute__((vector_size(32)));
typedef uint16_t H8u __attribute__((vector_size(16), aligned(2), may_alias));

// Half a panel's outputs at one k, as fp64.
struct Bf16Panel {
  using Element = uint16_t;
  TF_INLINE D8 load(const uint16_t* p) {
    const U8 wide = __builtin_convertvector(*reinterpret_cast<const H8u*>(p), U8) << 16;
    return __builtin_convertvector(reinterpret_cast<F8>(wide), D8);
  }
};
struct F32Panel {
  using Element = float;
  TF_INLINE D8 load(const float* p) {
    return __builtin_convertvector(*reinterpret_cast<const F8u*>(p), D8);
  }
};

// R rows times P panels.
template <typename Panel, int R, int P>
inline __attribute__((always_inline)) void multiply(const typename Panel::Element* w,
                                                    int64_t panel_stride, int in, const double* x,
                                                    int64_t x_stride, D8 (&sum)[R][2 * P]) {
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < 2 * P; ++p) sum[r][p] = D8{};
  for (int k = 0; k < in; ++k) {
    D8 v[2 * P];
    for (int p = 0; p < P; ++p) {
      const auto* at = w + p * panel_stride + int64_t{k} * kPanelOutputs;
      v[2 * p] = Panel::load(at);
      v[2 * p + 1] = Panel::load(at + 8);
    }
    for (int r = 0; r < R; ++r) {
      const double xv = x[r * x_stride + k];
      for (int p = 0; p < 2 * P; ++p) sum[r][p] += v[p] * xv;
    }
  }
}

TF_INLINE void put(const DenseBlock& b, int row, int panel, D8 low, D8 high) {
  float values[kPanelOutputs];
  *reinterpret_cast<F8u*>(values) = __builtin_convertvector(low, F8);
  *reinterpret_cast<F8u*>(values + 8) = __builtin_convertvector(high, F8);
  const F16 v = simd::load(values);
  const int64_t column = int64_t{panel} * kPanelOutputs;
  const int64_t at = row * b.y_stride + column;
  const auto width = static_cast<int>(std::min<int64_t>(kPanelOutputs, b.w->out - column));
  if (width == kPanelOutputs) {
    if (b.type == ValueType::kF32)
      simd::store(static_cast<float*>(b.y) + at, v);
    else
      simd::store_bf16(static_cast<uint16_t*>(b.y) + at, v);
    return;
  }
  for (int i = 0; i < width; ++i) {
    if (b.type == ValueType::kF32)
      static_cast<float*>(b.y)[at + i] = v[i];
    else
      static_cast<uint16_t*>(b.y)[at + i] = f32_to_bf16(v[i]);
  }
}

template <typename Panel, int R, int P>
inline __attribute__((always_inline)) void tile(const DenseBlock& b, int row, int panel) {
  const int in = b.w->in;
  const int64_t panel_stride = int64_t{in} * kPanelOutputs;
  const auto* w = static_cast<const typename Panel::Element*>(b.w->data) + panel * panel_stride;
  D8 sum[R][2 * P];
  multiply<Panel, R, P>(w, panel_stride, in, b.x + row * b.x_stride, b.x_stride, sum);
#ifdef TF_PLANTED_FAULT  // tests: eight rows together get another rounding
  if (R == 8)
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][0] * (1.0 + 0x1p-20);
#endif
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) put(b, row + r, panel + p, sum[r][2 * p], sum[r][2 * p + 1]);
}

template <typename Panel>
inline __attribute__((always_inline)) void block_of(const DenseBlock& b) {
  const int end = b.panel + b.panels;
  int row = 0;
  for (; row + 8 <= b.rows; row += 8)
    for (int panel = b.panel; panel < end; ++panel) tile<Panel, 8, 1>(b, row, panel);
  for (; row + 4 <= b.rows; row += 4)
    for (int panel = b.panel; panel < end; ++panel) tile<Panel, 4, 1>(b, row, panel);
  for (; row < b.rows; ++row) {
    int panel = b.panel;
    for (; panel + 4 <= end; panel += 4) tile<Panel, 1, 4>(b, row, panel);
    for (; panel < end; ++panel) tile<Panel, 1, 1>(b, row, panel);
  }
}

}  // namespace

TF_CLONES void dense_block_bf16(const DenseBlock& b) { block_of<Bf16Panel>(b); }
TF_CLONES void dense_block_f32(const DenseBlock& b) { block_of<F32Panel>(b); }

void dense_block(const DenseBlock& b) {
  if (b.w->layout == WeightLayout::kPanelBf16) return dense_block_bf16(b);
  TF_CHECK(b.w->layout == WeightLayout::kPanelF32);
  dense_block_f32(b);
}

static void run_task(const DenseJob& job, int64_t task) {
  const int64_t row_blocks = (job.rows + kDenseTaskRows - 1) / kDenseTaskRows;
  const auto panel = static_cast<int>(task / row_blocks) * kDenseTaskPanels;
  const auto row = static_cast<int>(task % row_blocks) * kDenseTaskRows;
  DenseBlock b;
  b.w = job.w;
  b.panel = panel;
  b.panels = std::min(kDenseTaskPanels, job.w->panels() - panel);
  b.rows = std::min(kDenseTaskRows, job.rows - row);
  b.x = job.x + row * job.x_stride;
  b.x_stride = job.x_stride;
  b.y_stride = job.y_stride;
  b.type = job.type;
  const int64_t at = row * job.y_stride;
  b.y = job.type == ValueType::kF32 ? static_cast<void*>(static_cast<float*>(job.y) + at)
                                    : static_cast<void*>(static_cast<uint16_t*>(job.y) + at);
  dense_block(b);
}

void dense(DenseJob* jobs, int count, CpuStream& stream) {
  int64_t tasks = 0, operations = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t groups = (jobs[i].w->panels() + kDenseTaskPanels - 1) / kDenseTaskPanels;
    jobs[i].first_task = tasks;
    tasks += groups * ((jobs[i].rows + kDenseTaskRows - 1) / kDenseTaskRows);
    operations += 2 * int64_t{jobs[i].rows} * jobs[i].w->out * jobs[i].w->in;
  }
  stream.parallel_for(tasks, operations, [&](int64_t task, int) {
    int lo = 0, hi = count;  // the last job whose first task is at most `task`
    while (hi - lo > 1) (jobs[(lo + hi) / 2].first_task <= task ? lo : hi) = (lo + hi) / 2;
    run_task(jobs[lo], task - jobs[lo].first_task);
  });
}

void pack_panels(const float* w, int out, int in, WeightLayout layout, void* panels) {
  const int padded = (out + kPanelOutputs - 1) / kPanelOutputs * kPanelOutputs;
  for (int n = 0; n < padded; ++n) {
    const int64_t base = int64_t{n / kPanelOutputs} * in * kPanelOutputs + n % kPanelOutputs;
    for (int k = 0; k < in; ++k) {
      const float v = n < out ? w[int64_t{n} * in + k] : 0.0f;
      const int64_t at = base + int64_t{k} * kPanelOutputs;
      if (layout == WeightLayout::kPanelF32)
        static_cast<float*>(panels)[at] = v;
      else
        static_cast<uint16_t*>(panels)[at] = f32_to_bf16(v);
    }
  }
}

}  // namespace tensorfold::cpu
