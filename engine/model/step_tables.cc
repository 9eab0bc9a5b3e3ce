// Tables of a step (engine/model/step_tables.h).
#include "engine/model/step_tables.h"

#include <cstring>
#include <string>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

constexpr int64_t kTableAlign = 16;
constexpr int64_t kRowTableBytes = 64;  // of one row in all of its tables, generously
constexpr int64_t kTablesMax = 64;      // tables of a step; each may waste kTableAlign

int64_t aligned(int64_t bytes) { return (bytes + kTableAlign - 1) / kTableAlign * kTableAlign; }

}  // namespace

Status StepTables::create(Device& device, const CacheLayout& layout, int rows, int row_sets) {
  device_ = &device;
  if (device.host_memory()) return ok_status();
  const int64_t blocks = layout.context / kBlockPositions + 2;
  capacity_ = row_sets * (rows * kRowTableBytes +
                          layout.slots * static_cast<int64_t>(sizeof(AttentionSlice))) +
              layout.slots * aligned(blocks * static_cast<int64_t>(sizeof(BlockId))) +
              kTablesMax * kTableAlign;
  memory_ = allocate_array<std::byte>(device, capacity_);
  if (memory_ == nullptr)
    return unavailable("no device memory for " + std::to_string(capacity_) +
                       " bytes of step tables");
  staged_.reserve(static_cast<size_t>(capacity_));
  return ok_status();
}

void StepTables::begin() {
  staged_.clear();
  block_tables_.clear();
}

const std::byte* StepTables::add_bytes(const void* values, int64_t bytes) {
  const auto at = aligned(static_cast<int64_t>(staged_.size()));
  TF_CHECK_LE(at + bytes, capacity_);
  staged_.resize(static_cast<size_t>(at + bytes));
  if (bytes > 0) std::memcpy(staged_.data() + at, values, static_cast<size_t>(bytes));
  return memory_.get() + at;
}

const int32_t* StepTables::block_table(const SequenceState& state) {
  for (const auto& [known, table] : block_tables_)
    if (known == &state) return table;
  const auto* table = reinterpret_cast<const int32_t*>(add_bytes(
      state.blocks().data(), static_cast<int64_t>(state.blocks().size() * sizeof(BlockId))));
  block_tables_.emplace_back(&state, table);
  return table;
}

void StepTables::add_rows(RowSet& rows) {
  DeviceRows& d = rows.on_device;
  if (device_->host_memory()) {
    d.slices = rows.slices.data();
  } else {
    slices_ = rows.slices;
    for (size_t i = 0; i < slices_.size(); ++i)
      slices_[i].block_table = block_table(*rows.states[i]);
    d.slices = add(slices_);
  }
  d.row_slice = add(rows.row_slice);
  d.source_row = add(rows.source_row);
  d.positions = add(rows.positions);
  d.pair_positions = add(rows.pair_positions);
  d.image = add(rows.image);
}

void StepTables::upload(Stream& stream) {
  if (device_->host_memory() || staged_.empty()) return;
  device_->upload(memory_.get(), staged_.data(), static_cast<int64_t>(staged_.size()), stream);
}

}  // namespace tensorfold
