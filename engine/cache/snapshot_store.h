// SnapshotStore: saved rings by number, so that a sequence can start where another one was. Owned
// by the engine thread. Global entries and token ids aren't copied: they are in the pool blocks
// that the head keeps for the snapshot.
//
// A full snapshot holds all rings; an encoder snapshot only those of the encoder layers and the
// compressor inputs: decoder and drafter rows before it are then not readable.
//
// Memory is taken once, in units of one encoder snapshot, wherever they are free; a full snapshot
// takes several. The head counts the same units, so save() never lacks one in a right plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/cache/cache_layout.h"
#include "engine/cache/sequence_state.h"

namespace tensorfold {

// How rings are copied from and to the device that holds them.
struct RingCopies {
  Device* device = nullptr;
  Stream* stream = nullptr;  // nullptr: host memory

  Status save(void* host, const void* from, int64_t bytes) const;
  void restore(void* to, const void* host, int64_t bytes) const;
};

class SnapshotStore {
 public:
  static Result<SnapshotStore> create(const CacheLayout& layout);

  // Replaces a snapshot of the same number.
  Status save(const CacheLayout& layout, const SequenceState& state, bool encoder_only,
              int64_t number, const RingCopies& copies = {});
  // Everything of `state` but its ids and blocks, as it was `cut` positions before the snapshot.
  Status restore(const CacheLayout& layout, int64_t number, int64_t cut, SequenceState& state,
                 const RingCopies& copies = {}) const;
  // Whether the rings of `state` have the bytes of the full snapshot `number`.
  Result<bool> equal(const CacheLayout& layout, int64_t number, const SequenceState& state,
                     const RingCopies& copies = {}) const;
  Status drop(int64_t number);
  int64_t bytes() const { return units_used() * unit_bytes_; }  // in use

  // One snapshot as bytes and back, for a CacheTier. import_record refuses what is not of this
  // layout (kDataLoss).
  Status export_record(const CacheLayout& layout, int64_t number,
                       std::vector<std::byte>& out) const;
  Status import_record(const CacheLayout& layout, int64_t number, std::span<const std::byte> bytes);

 private:
  struct Snapshot {
    bool encoder_only = false;
    int64_t length = 0, decoder_low = 0, decoder_end = 0, draft_low = 0, draft_end = 0;
    int64_t ring_low = 0;
    std::vector<int32_t> units;
  };
  int64_t units_used() const { return units_ - static_cast<int64_t>(free_.size()); }
  uint8_t* unit(int32_t index) { return memory_.get() + index * unit_bytes_; }
  const uint8_t* unit(int32_t index) const { return memory_.get() + index * unit_bytes_; }
  Status take_units(const CacheLayout& layout, int64_t number, Snapshot& s);

  int64_t units_ = 0, unit_bytes_ = 0;
  DeviceArray<uint8_t> memory_;  // of the host: [units, unit_bytes]
  std::vector<int32_t> free_;
  std::map<int64_t, Snapshot> snapshots_;
};

}  // namespace tensorfold
