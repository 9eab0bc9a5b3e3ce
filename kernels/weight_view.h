// WeightView: one matrix y = W x as an operation sees it: logical shape, layout, and whether its
// input is quantised. The memory belongs to the loader.
#pragma once

#include <cstdint>

#include "kernels/op.h"

namespace tensorfold {

inline constexpr int kPanelOutputs = 16;  // outputs that lie side by side in a panel

enum class WeightLayout : unsigned char {
  kNone,
  kRowsBf16,   // [out][in] bf16: tables that are read by row
  kPanelBf16,  // [ceil(out / 16)][in / 2][16][2] bf16: pairs of inputs side by side, little-endian
               // words; outputs past `out` are zero
  kPanelF32,   // [ceil(out / 16)][in][16] fp32
};

struct WeightView {
  WeightLayout layout = WeightLayout::kNone;
  // The stored format was FP8 or FP4: the input row is quantised to e4m3 in blocks of 32 with a
  // UE8M0 scale (reference arithmetic of the original checkpoints).
  bool quantise_input = false;
  int out = 0;
  int in = 0;
  const void* data = nullptr;

  bool present() const { return layout != WeightLayout::kNone; }
  int panels() const { return (out + kPanelOutputs - 1) / kPanelOutputs; }
  int64_t bytes() const {
    const int64_t rows = layout == WeightLayout::kRowsBf16 ? out : panels() * kPanelOutputs;
    return rows * in * (layout == WeightLayout::kPanelF32 ? 4 : 2);
  }
};

// Makes panels from rows: `w` [out][in] fp32 -> bf16 or fp32 panels at `panels`
// (WeightView::bytes() long). kernels/cpu/dense.cc
void pack_panels(const float* w, int out, int in, WeightLayout layout, void* panels);

// y = W x over `rows` rows.
inline OpCost weight_cost(const WeightView& w, int64_t rows) {
  return {w.bytes() + rows * (w.in + w.out) * 2, 2 * rows * w.in * w.out};
}

}  // namespace tensorfold
