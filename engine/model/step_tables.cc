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
  blocks_at_ = aligned(row_sets * (rows * kRowTableBytes +
                                   layout.slots * static_cast<int64_t>(sizeof(AttentionSlice))) +
                       kTablesMax * kTableAlign);
  capacity_ = blocks_at_ + layout.slots * aligned(blocks * static_cast<int64_t>(sizeof(BlockId)));
  memory_ = allocate_array<std::byte>(device, capacity_);
  if (memory_ == nullptr)
    return unavailable("no device memory for " + std::to_string(capacity_) +
                       " bytes of step tables");
  staged_.reserve(static_cast<size_t>(capacity_));
  staged_blocks_.reserve(static_cast<size_t>(capacity_ - blocks_at_));
  return ok_status();
}

bool StepTables::fits(int rows, int slices) const {
  constexpr int64_t kRowBytes = 32;  // of a row set's tables, ids and rows of logits
  const int64_t set = rows * kRowBytes + slices * static_cast<int64_t>(sizeof(AttentionSlice));
  return 3 * set + kTablesMax * kTableAlign <= blocks_at_;
}

void StepTables::begin(bool fixed) {
  fixed_ = fixed;
  staged_.clear();
  staged_blocks_.clear();
  block_tables_.clear();
}

const std::byte* StepTables::stage(std::vector<std::byte>& staged, int64_t place, int64_t end,
                                   const void* values, int64_t bytes) {
  const auto at = aligned(static_cast<int64_t>(staged.size()));
  TF_CHECK_LE(place + at + bytes, end);
  staged.resize(static_cast<size_t>(at + bytes));
  if (bytes > 0) std::memcpy(staged.data() + at, values, static_cast<size_t>(bytes));
  return memory_.get() + place + at;
}

const std::byte* StepTables::add_bytes(const void* values, int64_t bytes) {
  return stage(staged_, 0, fixed_ ? blocks_at_ : capacity_, values, bytes);
}

const int32_t* StepTables::block_table(const SequenceState& state) {
  for (const auto& [known, table] : block_tables_)
    if (known == &state) return table;
  const void* blocks = state.blocks().data();
  const auto bytes = static_cast<int64_t>(state.blocks().size() * sizeof(BlockId));
  const auto* table = reinterpret_cast<const int32_t*>(
      fixed_ ? stage(staged_blocks_, blocks_at_, capacity_, blocks, bytes)
             : add_bytes(blocks, bytes));
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
  if (!staged_blocks_.empty())
    device_->upload(memory_.get() + blocks_at_, staged_blocks_.data(),
                    static_cast<int64_t>(staged_blocks_.size()), stream);
}

}  // namespace tensorfold
