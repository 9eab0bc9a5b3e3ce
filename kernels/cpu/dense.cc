// Panel matrix product (kernels/cpu/dense.h).
#include "kernels/cpu/dense.h"

#include <algorithm>

#include "engine/base/check.h"
#include "kernels/cpu/simd.h"
#include "kernels/formats.h"

namespace tensorfold::cpu {
namespace {

using simd::F16;

struct Bf16Panel {
  using Element = uint16_t;
  TF_INLINE F16 load(const uint16_t* p) { return simd::load_bf16(p); }
};
struct F32Panel {
  using Element = float;
  TF_INLINE F16 load(const float* p) { return simd::load(p); }
};

// R rows times P panels; acc holds the finished sums.
template <typename Panel, int R, int P>
inline __attribute__((always_inline)) void multiply(const typename Panel::Element* w,
                                                    int64_t panel_stride, int in, const float* x,
                                                    int64_t x_stride, F16 (&total)[R][P]) {
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) total[r][p] = F16{};
  for (int k0 = 0; k0 < in; k0 += kDenseRun) {
    const int k1 = k0 + kDenseRun < in ? k0 + kDenseRun : in;
    F16 acc[R][P];
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) acc[r][p] = F16{};
    for (int k = k0; k < k1; ++k) {
      F16 v[P];
      for (int p = 0; p < P; ++p)
        v[p] = Panel::load(w + p * panel_stride + int64_t{k} * kPanelOutputs);
      for (int r = 0; r < R; ++r) {
        const float xv = x[r * x_stride + k];
        for (int p = 0; p < P; ++p) acc[r][p] += v[p] * xv;
      }
    }
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) total[r][p] += acc[r][p];
  }
}

TF_INLINE void put(const DenseBlock& b, int row, int panel, F16 v) {
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
  F16 total[R][P];
  multiply<Panel, R, P>(w, panel_stride, in, b.x + row * b.x_stride, b.x_stride, total);
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) put(b, row + r, panel + p, total[r][p]);
}

template <typename Panel>
inline __attribute__((always_inline)) void block_of(const DenseBlock& b) {
  const int end = b.panel + b.panels;
  int row = 0;
  for (; row + 4 <= b.rows; row += 4) {
    int panel = b.panel;
    for (; panel + 2 <= end; panel += 2) tile<Panel, 4, 2>(b, row, panel);
    for (; panel < end; ++panel) tile<Panel, 4, 1>(b, row, panel);
  }
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
