// What head and workers say to each other over a Group (engine/cluster/group.h): the bodies of its
// messages. Plain data with a stable binary form; decoding refuses what is out of bounds and names
// the field. Pure.
//
// One generation goes like this:
//   worker  kHello   who it is, which head it knew, how far it came
//   head    kSync    who it is, whether memory is kept; a kCommands before it if a worker is one
//                    plan behind
//   worker  kSynced  done; then kNews with all its records on disk, the last marked
//   head    kStep    one per step; the worker runs it and says nothing unless it has news. While
//                    work flows the same bodies come by broadcast (plan_flow.h)
//   worker  kNews    records written, lost, staged
//   worker  kLeaving it is being stopped and wants replies to end; kStaying: not after all
//   head    kMayLeave
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/cache/spill/record_key.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

inline constexpr int kNewsKeysMax = 256;         // of each kind in one message of a running group
inline constexpr int kNewsKeysAtOnceMax = 4096;  // of one message while a group forms
inline constexpr int kDroppedKeysMax = 1 << 16;  // of one step

enum class GroupMessage : uint16_t {
  kHello = 1,
  kSync = 2,
  kSynced = 3,
  kStep = 4,
  kCommands = 5,
  kNews = 6,
  kLeaving = 7,
  kStaying = 8,
  kMayLeave = 9,
};

struct Hello {
  uint64_t self = 0;     // of this process, random
  uint64_t head = 0;     // of the head that it worked for last; 0: none
  uint64_t applied = 0;  // the last plan of that head whose commands were carried out
  bool clean = false;    // they were carried out whole
};

struct Sync {
  uint64_t self = 0;
  bool keep = false;      // false: forget all sequences and snapshots
  uint64_t sequence = 0;  // of the head's last plan: the next one follows it
};

// A plan and what goes ahead of its commands.
struct StepOrder {
  uint64_t sequence = 0;           // counts all plans of a head
  bool flush = false;              // forget all records on disk
  bool flows = false;              // the next one comes by broadcast (plan_flow.h)
  std::vector<RecordKey> dropped;  // staged records that nobody waits for any more
  std::vector<std::byte> plan;     // encode_step_plan()
};

// What became of a worker's records.
struct News {
  struct Staged {
    RecordKey key;
    bool ready = false;  // false: it can't be had
  };
  bool whole = false;  // part of the list of all records that a group begins with
  bool last = false;   // of that list
  bool accepts = true;
  std::vector<RecordKey> there;
  std::vector<RecordKey> gone;
  std::vector<Staged> staged;
  std::vector<Staged> compared;  // ready: the record is what the rank computes
  bool empty() const { return there.empty() && gone.empty() && staged.empty() && compared.empty(); }
};

std::vector<std::byte> encode(const Hello& hello);
std::vector<std::byte> encode(const Sync& sync);
std::vector<std::byte> encode(const StepOrder& order);
std::vector<std::byte> encode(const News& news);
Status decode(std::span<const std::byte> body, Hello& hello);
Status decode(std::span<const std::byte> body, Sync& sync);
Status decode(std::span<const std::byte> body, StepOrder& order);
Status decode(std::span<const std::byte> body, News& news);

// Of a message's bytes, 64 bits: what ranks compare before a step.
uint64_t order_digest(std::span<const std::byte> body);

}  // namespace tensorfold
