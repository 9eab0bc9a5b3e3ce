// CacheTier: what stands behind the pool: one rank's records on disk, as the cache sees them. The
// spill tier implements it; SequenceCache calls it when a plan has kStage, kSpill*, kFill*, and the
// head's PrefixIndex when it looks for a prefix.
//
// How the two work together. The head's index (engine/cache/prefix_index.h) decides; plans carry
// its decisions to every rank:
//   out   A turn ended: kSpillBlock / kSpillSnapshot for what is not on disk yet, a few per step.
//         spill() copies the bytes into a bounded queue and returns; the io thread writes. When a
//         record is durable, it is in take_events() and the index knows it as on disk.
//   in    A request comes whose longest match needs records from disk: kStage for each of them.
//         stage() begins to read into host memory; the request waits outside its slot, others run.
//         When staged() says kReady or kMissing for all, the request is admitted and its plan has
//         kFillBlock / kFillSnapshot for what is ready; fill() copies out of host memory.
//   away  A sequence failed, and what it left must not serve: kForget for each record. forget()
//         deletes it and what stands on it; one that is still being written goes when it is.
//   proof What came from disk is computed anew for a few rows: kCompareBlock / kCompareRings.
//         compared() is told what came of it, drops what is not equal, and says so in
//         take_events().
// So nothing on the step path ever waits for the disk. A record that is missing on one rank must be
// missing on all: with several ranks the head asks them before it plans the fill.
//
// Calls come from the engine thread only, and none may wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/cache/block_digest.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

// The bytes of one record. Block: ids and engram ids of its positions and the pool block's bytes
// (all of them, also when fewer positions are named). Snapshot: SnapshotStore::export_bytes().
struct CacheRecord {
  CacheNote note;
  std::vector<int32_t> ids;         // blocks: [note.positions] as fed
  std::vector<int32_t> engram_ids;  // blocks: [note.positions], -1 at image rows
  std::vector<std::byte> bytes;
};

// A text that differs only behind these may still use a full snapshot, cut back.
inline constexpr int kStemCutPositions = 8;

// From the io thread, in the order in which it happened.
struct TierEvent {
  enum class Kind : uint8_t {
    kStored = 0,  // durable: may be read back
    kGone = 1,    // deleted, expired or unreadable
    kFound = 2,   // from the headers of an earlier run (fingerprint is set)
    kProved = 3,  // rows computed anew were equal to the record's
    kUntrue = 4,  // they were not
  };
  Kind kind = Kind::kStored;
  CacheNote note;
  uint64_t fingerprint = 0;  // text_fingerprint() of a block's ids and images
  // The same without its last kStemCutPositions positions; 0: it has no more than those.
  uint64_t stem = 0;
};

// For status and metrics; all zero: there is no disk.
struct TierFigures {
  enum class State : uint8_t { kOff, kReadingIndex, kOn, kPaused } state = State::kOff;
  int64_t files = 0, records = 0, bytes = 0, bytes_max = 0;
  int64_t written_bytes = 0, read_bytes = 0, read_us = 0;
  int64_t damaged = 0;    // files dropped
  int64_t proved = 0;     // restored records whose rows were computed anew and equal
  int64_t untrue = 0;     // and not equal: dropped
  int64_t errors = 0;     // operations that the disk refused
  int64_t missed = 0;     // records that were wanted and could not be had
  int64_t not_taken = 0;  // offered while there was no room or the tier was off
  int64_t times_off = 0;
};

class CacheTier {
 public:
  enum class Staged : uint8_t { kReading, kReady, kMissing };

  virtual ~CacheTier() = default;

  // Whether spill() would take something now, as far as one can tell.
  virtual bool accepts() const { return true; }
  // False: not taken (queue full, no space, tier off): kGone follows, and the index may offer it
  // again later.
  virtual bool spill(const CacheNote& note, std::span<const int32_t> ids,
                     std::span<const int32_t> engram_ids, std::span<const std::byte> bytes) = 0;
  virtual void stage(const CacheNote& note) = 0;
  virtual Staged staged(const BlockDigest& name, CacheNote::Kind kind) const = 0;
  // The staged record, checked; nullptr: not ready. Valid until unstage() or the next stage().
  virtual const CacheRecord* record(const BlockDigest& name, CacheNote::Kind kind) const = 0;
  virtual void unstage(const BlockDigest& name, CacheNote::Kind kind) = 0;
  virtual void forget(const CacheNote& note) = 0;  // whether it is there or not; kGone follows
  // Rows that the record `note` (of rings) brought were computed anew; kProved or kUntrue follows.
  virtual void compared(const CacheNote& /*note*/, bool /*equal*/) {}
  virtual std::vector<TierEvent> take_events() = 0;
  // For the stop, off the step path: waits until what was taken is on disk, at most `wait_us`.
  virtual void settle(int64_t /*wait_us*/) {}
  // Forgets and deletes all records (tfctl cache flush --spill). kGone events follow.
  virtual void flush() = 0;
  virtual TierFigures figures() const { return {}; }
};

}  // namespace tensorfold
