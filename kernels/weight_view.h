// WeightView: one matrix y = W x as an operation sees it: logical shape, layout, and whether its
// input is quantised. The memory belongs to the loader.
#pragma once

#include <cstdint>

#include "kernels/op.h"

namespace tensorfold {

inline constexpr int kPanelOutputs = 16;  // outputs that lie side by side in a panel

enum class WeightLayout : unsigned char {
  kNone,
  kRowsBf16,   // [out][in] bf16: tables that are read by row, and every bf16 matrix on a GPU
  kRowsF32,    // [out][in] fp32
  kPanelBf16,  // [ceil(out / 16)][in / 2][16][2] bf16: pairs of inputs side by side, little-endian
               // words; outputs past `out` are zero
  kPanelF32,   // [ceil(out / 16)][in][16] fp32
  kExl3,       // trellis codes of W^T with a rotation on each side (Exl3Parts)
};

// How the trellis of a kExl3 weight lies in memory.
enum class Exl3Order : unsigned char {
  kTiles,  // as stored: [padded_in / 16][padded_out / 16] tiles of 16 * half_bits bytes
  kLanes,  // kernels/cuda/exl3_layout.h: what a warp's lanes read, side by side; whole bits only
};

// The parts of a kExl3 weight: y = ((((x * suh) H) W_q) H) * svh in blocks of 128, x extended by
// zeros to padded_in, y trimmed to out (engine/weights/exl3_codec.h is the reference).
struct Exl3Parts {
  const void* trellis = nullptr;  // 16-byte aligned; padded_in * padded_out * half_bits / 16 bytes
  const uint16_t* suh = nullptr;  // fp16 [padded_in]
  const uint16_t* svh = nullptr;  // fp16 [padded_out]
  int padded_in = 0;              // multiples of 128
  int padded_out = 0;
  unsigned char half_bits = 0;  // twice the bits of a weight: 2..16
  unsigned char codebook = 0;   // 0 3inst, 1 mcg, 2 mul1
  Exl3Order order = Exl3Order::kTiles;
};

// The matrices of an expert whose three weights are kExl3; w1.trellis nullptr: it is absent on this
// rank.
struct Exl3Expert {
  Exl3Parts w1, w3;  // [I, H]
  Exl3Parts w2;      // [H, I]
};

struct WeightView {
  WeightLayout layout = WeightLayout::kNone;
  // The stored format was FP8 or FP4: the input row is quantised to e4m3 in blocks of 32 with a
  // UE8M0 scale (reference arithmetic of the original checkpoints).
  bool quantise_input = false;
  int out = 0;
  int in = 0;
  const void* data = nullptr;
  Exl3Parts exl3;  // kExl3 only; `data` is not used then

  bool present() const { return layout != WeightLayout::kNone; }
  int panels() const { return (out + kPanelOutputs - 1) / kPanelOutputs; }
  int64_t bytes() const {
    if (layout == WeightLayout::kExl3)
      return int64_t{exl3.padded_in} * exl3.padded_out * exl3.half_bits / 16 +
             2 * (int64_t{exl3.padded_in} + exl3.padded_out);
    const bool by_row = layout == WeightLayout::kRowsBf16 || layout == WeightLayout::kRowsF32;
    const bool wide = layout == WeightLayout::kRowsF32 || layout == WeightLayout::kPanelF32;
    const int64_t rows = by_row ? out : panels() * kPanelOutputs;
    return rows * in * (wide ? 4 : 2);
  }
};

// Makes panels from rows: `w` [out][in] fp32 -> bf16 or fp32 panels at `panels`
// (WeightView::bytes() long), or bf16 or fp32 rows. kernels/cpu/dense.cc
void pack_panels(const float* w, int out, int in, WeightLayout layout, void* panels);

// y = W x over `rows` rows.
inline OpCost weight_cost(const WeightView& w, int64_t rows) {
  return {w.bytes() + rows * (w.in + w.out) * 2, 2 * rows * w.in * w.out};
}

}  // namespace tensorfold
