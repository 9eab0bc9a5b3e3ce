// What the three attention operations share: the slices of a step, where a sequence's keys lie,
// and how many global entries a row sees.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/op.h"

namespace tensorfold {

inline constexpr int kPairRingRows = 64;   // compressor inputs kept per sequence
inline constexpr int kRingSpareRows = 16;  // window ring rows beyond the window (rollback)

// A run of rows of one sequence at consecutive positions.
struct AttentionSlice {
  int32_t first_row = 0;  // into the step's rows
  int32_t rows = 0;
  int64_t first_position = 0;
  int64_t window_floor = 0;  // window keys below this position are not read
  int32_t staged_first = 0;  // first of its rows in the staged window rows
  int32_t history = 0;       // staged rows taken from the ring; the slice's own rows follow
  // The sequence's window rings and compressor inputs, of all layers; a call says where its own
  // begin, so that slices stay the same for a whole step.
  uint8_t* rings = nullptr;              // each [ring_rows] packed window rows
  float* pair_rings = nullptr;           // each [kPairRingRows][2][D] (a, g)
  const int32_t* block_table = nullptr;  // pool blocks of the sequence, by position / 256
};

// Global entries of one KV source in the shared pool: entry j of a sequence lies in block
// block_table[j / entries_per_block].
struct EntryPool {
  uint8_t* base = nullptr;
  int64_t block_bytes = 0;   // from one block to the next
  int64_t main_offset = 0;   // of the block's main entries
  int64_t index_offset = 0;  // of the block's index keys
  int32_t entries_per_block = 1;
  int32_t ratio = 1;  // positions per entry

  uint8_t* main(const int32_t* table, int64_t j, int64_t entry_bytes) const {
    return base + table[j / entries_per_block] * block_bytes + main_offset +
           (j % entries_per_block) * entry_bytes;
  }
  uint8_t* index(const int32_t* table, int64_t j, int64_t key_bytes) const {
    return base + table[j / entries_per_block] * block_bytes + index_offset +
           (j % entries_per_block) * key_bytes;
  }
};

// Entries that a row at `position` sees: those whose last position is at most its own.
constexpr int64_t visible_entries(int64_t position, int ratio) { return (position + 1) / ratio; }

// First window position that a row sees.
constexpr int64_t window_first(int64_t position, int window, int64_t floor) {
  const int64_t first = position - window + 1 > 0 ? position - window + 1 : 0;
  return first > floor ? first : floor;
}

}  // namespace tensorfold
