// The tile encoder of EXL3: finds the ring of 256 trellis states whose codebook values are nearest
// (least squares) to a tile, by a two-pass tail-biting Viterbi search.
//
// Pass 1 starts with every node free some steps before the tile's first value, runs past it, and
// reads which node the best path goes through there. Pass 2 forces that node at both ends of the
// tile and is exact under that condition. How far pass 1 looks to each side is a constant per width
// (kLookSteps); beyond a few times the 16 bits of memory more does not change the result.
//
// Costs are fp32, summed in stream order; every candidate is computed by the same three operations
// (subtract, multiply, add) on every processor, so states are bit-equal everywhere, whatever vector
// width the processor has. An encoder is scratch memory plus tables: one per thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/weights/exl3_codec.h"

namespace tensorfold::exl3 {

// Tables of one (width, codebook) for this processor: the codebook in the order in which the search
// reads it. Immutable, shared by encoders of many threads. About 256 KiB, half widths 512 KiB.
class ViterbiTables {
 public:
  // lanes: floats per vector operation; 0 picks the widest that this processor has. Tests pass
  // 4, 8 and 16 to compare.
  ViterbiTables(int half_bits, Codebook codebook, int lanes = 0);

  int half_bits() const { return half_bits_; }
  Codebook codebook() const { return codebook_; }

  // One step p of the search: costs of the nodes entering value p -> costs of the nodes entering
  // p + 1. in: fp32 [65536 >> new_bits(p)]; out: fp32 [65536 >> new_bits(p + 1)], 64-byte aligned.
  void step(int p, const float* in, float* out, float target) const;

 private:
  using StepFn = void (*)(const float* in, float* out, const float* table, float target);
  int half_bits_;
  Codebook codebook_;
  StepFn steps_[2];  // even and odd p
  std::shared_ptr<const float> tables_[2];
};

// The widest vector (in floats) that this processor runs: 16, 8 or 4.
int viterbi_lanes();

class TileEncoder {
 public:
  explicit TileEncoder(std::shared_ptr<const ViterbiTables> tables);

  // Steps that pass 1 looks to each side of the tile's first value.
  static int look_steps(int half_bits);

  // target: 256 values in stream order (tile_position maps them to the tile), in codebook units,
  // finite. states: the ring found. Returns the squared error, summed over the tile.
  float encode(std::span<const float, kTileValues> target, std::span<uint16_t, kTileValues> states);

 private:
  uint32_t find_entry_node(std::span<const float, kTileValues> target);
  uint32_t step_back(int p, uint32_t node, float target, const float* in, uint16_t* state) const;
  float* row(int index) { return rows_.get() + static_cast<size_t>(index) * row_floats_; }

  std::shared_ptr<const ViterbiTables> tables_;
  size_t row_floats_;            // nodes of the wider kind of step
  std::shared_ptr<float> rows_;  // fp32 [257][row_floats_]: costs of the nodes entering each value
};

}  // namespace tensorfold::exl3
