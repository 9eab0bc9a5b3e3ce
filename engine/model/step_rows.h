// StepRows: the rows of one step, checked and laid out for the operations.
//
// A RowSet is what a layer runs over: the encoder layers over all rows, the decoder layers over the
// rows that need an output (the last decoder_rows of each slice). Both hold the rows of class P
// first, then those of class D, each in the plan's order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/cache/sequence_cache.h"
#include "engine/model/config.h"
#include "engine/sched/step_plan.h"
#include "kernels/attention.h"

namespace tensorfold {

// A slice of the plan with its sequence; masked slices are left out.
struct StepSlice {
  const Slice* plan = nullptr;
  SequenceState* state = nullptr;
};

// A row set's tables as the operations read them, in device memory (engine/model/step_tables.h).
struct DeviceRows {
  const AttentionSlice* slices = nullptr;
  const int32_t* row_slice = nullptr;
  const int32_t* source_row = nullptr;
  const int64_t* positions = nullptr;
  const int64_t* pair_positions = nullptr;
  const uint8_t* image = nullptr;
};

struct RowSet {
  int rows = 0;
  int prompt_rows = 0;  // of class P: they come first
  int padding = 0;      // slices at the end that only fill up (pad)
  std::vector<AttentionSlice> slices;
  std::vector<SequenceState*> states;   // [slices]
  std::vector<SlotId> slots;            // [slices]
  std::vector<int32_t> row_slice;       // [rows]
  std::vector<int32_t> source_row;      // [rows] row of the whole step
  std::vector<int64_t> positions;       // [rows]
  std::vector<int64_t> pair_positions;  // [rows] first position of the pair that a row completes
  std::vector<uint8_t> image;           // [rows] 1: image row
  int staged_rows = 0;                  // window rows staged for attention
  int64_t positions_end = 0;            // largest position + 1
  DeviceRows on_device;

  void clear();
  void add_slice(SequenceState& state, SlotId slot, int64_t first_position, int rows,
                 int first_source_row, int window, int64_t window_floor, bool is_image = false);
  // Fills up to `to_rows` rows and `to_slices` slices, and `end` as positions_end. A row that fills
  // up is the first row of `slice` once more, in a slice of its own: it computes the same bits and
  // stores them where they lie already, and asks no further expert. The other slices are empty.
  void pad(size_t slice, int to_rows, int to_slices, int64_t end);
};

struct StepRows {
  std::vector<StepSlice> slices;  // in the order of the rows
  std::vector<int32_t> ids;       // [rows] as fed to the embedding
  RowSet encoder;
  RowSet decoder;
  std::vector<int32_t> logits_rows;  // rows of `decoder` that want logits, in plan order

  // RowSet::pad of both sets and of ids. Only where every row is a decoder row.
  void pad(int to_rows, int to_slices, int64_t end);

  // Checks the whole plan before anything changes, then appends ids to the sequences.
  Status build(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
               const ModelConfig& config, std::span<const int32_t> token_map, int rows_max,
               SequenceCache& cache);

 private:
  void add_slice(const Slice& slice, std::span<const int32_t> tokens, const ModelConfig& config,
                 std::span<const int32_t> token_map, SequenceState& state);
  Status check(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
               const ModelConfig& config, int rows_max, SequenceCache& cache);
};

}  // namespace tensorfold
