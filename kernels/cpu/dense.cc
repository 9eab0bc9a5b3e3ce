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
typedef double D8u __attribute__((vector_size(64), aligned(8), may_alias));
typedef uint32_t U16u __attribute__((vector_size(64), aligned(4), may_alias));

// 16 values as two vectors of fp64. The plain loop becomes two conversions.
TF_INLINE void widen(F16 v, D8 (&out)[2]) {
  float narrow[16];
  double wide[16];
  simd::store(narrow, v);
  for (int i = 0; i < 16; ++i) wide[i] = static_cast<double>(narrow[i]);
  out[0] = *reinterpret_cast<const D8u*>(wide);
  out[1] = *reinterpret_cast<const D8u*>(wide + 8);
}

// A panel's outputs at inputs k and k + 1 (k even).
struct Bf16Panel {
  using Element = uint16_t;
  TF_INLINE void load(const uint16_t* panel, int k, D8 (&even)[2], D8 (&odd)[2]) {
    const auto words = *reinterpret_cast<const U16u*>(panel + int64_t{k} * kPanelOutputs);
    widen(reinterpret_cast<F16>(words << 16), even);
    widen(reinterpret_cast<F16>(words & 0xffff0000u), odd);
  }
};
struct F32Panel {
  using Element = float;
  TF_INLINE void load(const float* panel, int k, D8 (&even)[2], D8 (&odd)[2]) {
    widen(simd::load(panel + int64_t{k} * kPanelOutputs), even);
    widen(simd::load(panel + int64_t{k + 1} * kPanelOutputs), odd);
  }
};

// R rows times P panels.
template <typename Panel, int R, int P>
inline __attribute__((always_inline)) void multiply(const typename Panel::Element* w,
                                                    int64_t panel_stride, int in, const double* x,
                                                    int64_t x_stride, D8 (&sum)[R][2 * P]) {
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < 2 * P; ++p) sum[r][p] = D8{};
  for (int k = 0; k < in; k += 2) {
    for (int p = 0; p < P; ++p) {
      D8 even[2], odd[2];
      Panel::load(w + p * panel_stride, k, even, odd);
      for (int r = 0; r < R; ++r) {
        const double x0 = x[r * x_stride + k], x1 = x[r * x_stride + k + 1];
        for (int h = 0; h < 2; ++h) {
          sum[r][2 * p + h] += even[h] * x0;
          sum[r][2 * p + h] += odd[h] * x1;
        }
      }
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

// The last R rows, with enough panels at once to keep the adders busy.
template <typename Panel, int R>
inline __attribute__((always_inline)) void rest(const DenseBlock& b, int row) {
  constexpr int kPanels = R == 1 ? 4 : R <= 3 ? 2 : 1;
  const int end = b.panel + b.panels;
  int panel = b.panel;
  for (; panel + kPanels <= end; panel += kPanels) tile<Panel, R, kPanels>(b, row, panel);
  for (; panel < end; ++panel) tile<Panel, R, 1>(b, row, panel);
}

template <typename Panel>
inline __attribute__((always_inline)) void block_of(const DenseBlock& b) {
  const int end = b.panel + b.panels;
  int row = 0;
  for (; row + 8 <= b.rows; row += 8)
    for (int panel = b.panel; panel < end; ++panel) tile<Panel, 8, 1>(b, row, panel);
  switch (b.rows - row) {
    case 7:
      return rest<Panel, 7>(b, row);
    case 6:
      return rest<Panel, 6>(b, row);
    case 5:
      return rest<Panel, 5>(b, row);
    case 4:
      return rest<Panel, 4>(b, row);
    case 3:
      return rest<Panel, 3>(b, row);
    case 2:
      return rest<Panel, 2>(b, row);
    case 1:
      return rest<Panel, 1>(b, row);
    default:
      return;
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

}  // namespace tensorfold::cpu

namespace tensorfold {

void pack_panels(const float* w, int out, int in, WeightLayout layout, void* panels) {
  const int64_t count = int64_t{out} * in;
  if (layout == WeightLayout::kRowsF32) {
    std::copy_n(w, count, static_cast<float*>(panels));
    return;
  }
  if (layout == WeightLayout::kRowsBf16) {
    for (int64_t i = 0; i < count; ++i) static_cast<uint16_t*>(panels)[i] = f32_to_bf16(w[i]);
    return;
  }
  const int padded = (out + kPanelOutputs - 1) / kPanelOutputs * kPanelOutputs;
  for (int n = 0; n < padded; ++n) {
    const int64_t panel = int64_t{n / kPanelOutputs} * in * kPanelOutputs;
    const int lane = n % kPanelOutputs;
    for (int k = 0; k < in; ++k) {
      const float v = n < out ? w[int64_t{n} * in + k] : 0.0f;
      if (layout == WeightLayout::kPanelF32)
        static_cast<float*>(panels)[panel + int64_t{k} * kPanelOutputs + lane] = v;
      else
        static_cast<uint16_t*>(
            panels)[panel + (int64_t{k & ~1} * kPanelOutputs) + 2 * lane + (k & 1)] =
            f32_to_bf16(v);
    }
  }
}

}  // namespace tensorfold
