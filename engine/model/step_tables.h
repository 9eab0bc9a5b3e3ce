// StepTables: what the operations of a step read besides weights and activations (slices, block
// tables, positions, ids, row lists), gathered and sent to the device in one piece.
//
// Owned by the model. Where the device's memory is the host's nothing is copied: the tables are the
// vectors that were given. Otherwise a table added between begin() and upload() is valid on the
// stream until the next upload.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/model/step_rows.h"
#include "kernels/device.h"

namespace tensorfold {

class StepTables {
 public:
  // Room for `row_sets` row sets of `rows` rows and the block tables of all slots.
  Status create(Device& device, const CacheLayout& layout, int rows, int row_sets);

  // fixed: every table's place is a function of the sizes of those before it, block tables aside,
  // which lie behind all others. So launches that were recorded find the tables of the next step.
  void begin(bool fixed = false);
  // Whether three row sets of so many rows and slices fit with begin(true).
  bool fits(int rows, int slices) const;
  // Where `values` will lie. On the host they must stay unchanged while the step runs.
  template <typename T>
  const T* add(const std::vector<T>& values) {
    if (device_->host_memory()) return values.data();
    return reinterpret_cast<const T*>(
        add_bytes(values.data(), static_cast<int64_t>(values.size() * sizeof(T))));
  }
  // Adds a row set's tables and points rows.on_device to them.
  void add_rows(RowSet& rows);
  void upload(Stream& stream);

 private:
  const std::byte* add_bytes(const void* values, int64_t bytes);
  const std::byte* stage(std::vector<std::byte>& staged, int64_t place, int64_t end,
                         const void* values, int64_t bytes);
  const int32_t* block_table(const SequenceState& state);

  Device* device_ = nullptr;
  DeviceArray<std::byte> memory_;
  int64_t capacity_ = 0;
  int64_t blocks_at_ = 0;  // where block tables lie after begin(true)
  bool fixed_ = false;
  std::vector<std::byte> staged_, staged_blocks_;
  std::vector<AttentionSlice> slices_;  // of the row set being added, with device pointers
  std::vector<std::pair<const SequenceState*, const int32_t*>> block_tables_;
};

}  // namespace tensorfold
