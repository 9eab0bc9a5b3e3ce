// SequenceState: everything of one sequence but its pool blocks: token ids, block table, rings.
// Owned by the engine thread.
//
// Rollback is by length: rows past the length are overwritten when their positions come again.
// Rings keep kRingSpareRows more rows than the window, so that rejected verify rows never destroy a
// row that is still seen; `ring_low` is the oldest position whose ring rows are whole.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cache/block_pool.h"
#include "engine/cache/cache_layout.h"

namespace tensorfold {

class SequenceState {
 public:
  static Result<SequenceState> create(const CacheLayout& layout, Device& device = cpu_device());

  bool open() const { return open_; }
  int64_t length() const { return length_; }
  void start();  // empty and open
  void stop();

  // ids: as fed; -1 marks an image row in engram_ids.
  const std::vector<int32_t>& ids() const { return ids_; }
  const std::vector<int32_t>& engram_ids() const { return engram_ids_; }
  std::vector<BlockId>& blocks() { return blocks_; }
  const std::vector<BlockId>& blocks() const { return blocks_; }

  // Rows of a step become part of the sequence; called before they are computed.
  void append(int32_t id, int32_t engram_id);
  // Ids go with the blocks that hold their positions: written there before a snapshot is taken,
  // read back when one is restored.
  void write_ids(BlockPool& pool);
  void read_ids(const BlockPool& pool);
  // After the step's ring writes up to the length.
  void note_ring_writes();
  // Decoder rows ran for positions [first, end); older decoder ring rows are usable only without a
  // gap.
  void note_decoder_rows(int64_t first, int64_t end);
  void note_draft_rows(int64_t first, int64_t end);
  int64_t decoder_low() const { return decoder_low_; }
  int64_t draft_low() const { return draft_low_; }

  // Keeps the first `length` positions. kInvalidArgument when the rings can't go back that far.
  Status truncate(int64_t length, int window);

  // Device memory, as in BlockPool.
  uint8_t* ring(int index) { return rings_.get() + index * ring_bytes_; }
  const uint8_t* ring(int index) const { return rings_.get() + index * ring_bytes_; }
  float* pairs() { return pairs_.get(); }  // of all sources

  friend class SnapshotStore;

 private:
  bool open_ = false;
  int64_t length_ = 0;
  int64_t ids_written_ = 0;  // positions whose ids are in the pool
  int64_t ring_low_ = 0;     // oldest position that no newer row has overwritten
  int64_t decoder_low_ = 0;  // decoder ring rows are valid from here
  int64_t decoder_end_ = 0;
  int64_t draft_low_ = 0;
  int64_t draft_end_ = 0;
  int ring_rows_ = 0;
  int64_t ring_bytes_ = 0;
  std::vector<int32_t> ids_, engram_ids_;
  std::vector<BlockId> blocks_;
  DeviceArray<uint8_t> rings_;  // [layers + stages][ring_bytes]
  DeviceArray<float> pairs_;
};

}  // namespace tensorfold
