// SnapshotStore: saved rings by number, so that a sequence can start where another one was. Owned
// by the engine thread. Global entries aren't copied: a snapshot goes with the pool blocks that the
// planner keeps referenced.
//
// A full snapshot holds all rings; an encoder snapshot only those of the encoder layers and the
// compressor inputs: decoder and drafter rows before it are then not readable.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/base/status.h"
#include "engine/cache/cache_layout.h"
#include "engine/cache/sequence_state.h"

namespace tensorfold {

inline constexpr int kSnapshotsMax = 4096;

// How rings are copied from and to the device that holds them.
struct RingCopies {
  Device* device = nullptr;
  Stream* stream = nullptr;  // nullptr: host memory

  Status save(void* host, const void* from, int64_t bytes) const;
  void restore(void* to, const void* host, int64_t bytes) const;
};

class SnapshotStore {
 public:
  // Replaces a snapshot of the same number.
  Status save(const CacheLayout& layout, const SequenceState& state, bool encoder_only,
              int64_t number, const RingCopies& copies = {});
  Status restore(const CacheLayout& layout, int64_t number, SequenceState& state,
                 const RingCopies& copies = {}) const;
  Status drop(int64_t number);
  int64_t bytes() const { return bytes_; }

 private:
  struct Snapshot {
    bool encoder_only = false;
    int64_t length = 0, decoder_low = 0, decoder_end = 0, draft_low = 0, draft_end = 0;
    int64_t ring_low = 0;
    std::vector<int32_t> ids, engram_ids;
    std::vector<uint8_t> rings;
    std::vector<float> pairs;
    int64_t bytes() const;
  };
  std::map<int64_t, Snapshot> snapshots_;
  int64_t bytes_ = 0;
};

}  // namespace tensorfold
