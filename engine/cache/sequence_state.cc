// State of one sequence (engine/cache/sequence_state.h).
#include "engine/cache/sequence_state.h"

#include <algorithm>
#include <string>

#include "engine/base/check.h"

namespace tensorfold {

Result<SequenceState> SequenceState::create(const CacheLayout& layout, Device& device) {
  SequenceState s;
  s.ring_rows_ = layout.ring_rows;
  s.ring_bytes_ = layout.ring_bytes;
  s.rings_ = allocate_array<uint8_t>(device, layout.rings() * layout.ring_bytes);
  s.pairs_ = allocate_array<float>(device, layout.pair_floats);
  if (s.rings_ == nullptr || s.pairs_ == nullptr)
    return unavailable("no memory for the rings of a sequence");
  s.ids_.reserve(static_cast<size_t>(layout.context));
  s.engram_ids_.reserve(static_cast<size_t>(layout.context));
  s.blocks_.reserve(static_cast<size_t>(layout.context / kBlockPositions + 1));
  return s;
}

void SequenceState::start() {
  TF_CHECK(blocks_.empty());
  open_ = true;
  length_ = ids_written_ = ring_low_ = decoder_low_ = decoder_end_ = draft_low_ = draft_end_ = 0;
  ids_.clear();
  engram_ids_.clear();
}

void SequenceState::stop() {
  open_ = false;
  length_ = 0;
  ids_.clear();
  engram_ids_.clear();
}

void SequenceState::append(int32_t id, int32_t engram_id) {
  ids_.push_back(id);
  engram_ids_.push_back(engram_id);
  ++length_;
}

void SequenceState::write_ids(BlockPool& pool) {
  for (int64_t p = ids_written_; p < length_; ++p) {
    const BlockId block = blocks_[static_cast<size_t>(p / kBlockPositions)];
    pool.ids(block)[p % kBlockPositions] = ids_[static_cast<size_t>(p)];
    pool.engram_ids(block)[p % kBlockPositions] = engram_ids_[static_cast<size_t>(p)];
  }
  ids_written_ = length_;
}

void SequenceState::read_ids(const BlockPool& pool) {
  ids_.clear();
  engram_ids_.clear();
  for (int64_t p = 0; p < length_; p += kBlockPositions) {
    const BlockId block = blocks_[static_cast<size_t>(p / kBlockPositions)];
    const int64_t n = std::min<int64_t>(kBlockPositions, length_ - p);
    ids_.insert(ids_.end(), pool.ids(block), pool.ids(block) + n);
    engram_ids_.insert(engram_ids_.end(), pool.engram_ids(block), pool.engram_ids(block) + n);
  }
  ids_written_ = length_;
}

void SequenceState::note_ring_writes() { ring_low_ = std::max(ring_low_, length_ - ring_rows_); }

void SequenceState::note_decoder_rows(int64_t first, int64_t end) {
  if (first != decoder_end_) decoder_low_ = first;
  decoder_end_ = end;
}

void SequenceState::note_draft_rows(int64_t first, int64_t end) {
  if (first > draft_end_) draft_low_ = first;
  draft_end_ = end;
}

Status SequenceState::truncate(int64_t length, int window) {
  if (length < 0 || length > length_)
    return invalid_argument("cannot truncate a sequence of " + std::to_string(length_) +
                            " positions to " + std::to_string(length));
  const int64_t oldest = std::max<int64_t>(0, length - window + 1);
  if (oldest < ring_low_ && length < length_)
    return invalid_argument("cannot roll back from " + std::to_string(length_) + " to " +
                            std::to_string(length) + " positions: window rows before " +
                            std::to_string(ring_low_) + " are gone");
  length_ = length;
  ids_written_ = std::min(ids_written_, length);
  ids_.resize(static_cast<size_t>(length));
  engram_ids_.resize(static_cast<size_t>(length));
  decoder_end_ = std::min(decoder_end_, length);
  draft_end_ = std::min(draft_end_, length);
  return ok_status();
}

}  // namespace tensorfold
