// RecordKey: what a record of the cache is looked up by: its name and its kind.
#pragma once

#include <cstddef>

#include "engine/cache/block_digest.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

struct RecordKey {
  BlockDigest name;
  CacheNote::Kind kind = CacheNote::Kind::kBlock;
  bool operator==(const RecordKey&) const = default;
};

inline RecordKey key_of(const CacheNote& note) { return {note.name, note.kind}; }

struct RecordKeyHash {
  size_t operator()(const RecordKey& key) const {
    return BlockDigestHash{}(key.name) + static_cast<size_t>(key.kind);
  }
};

}  // namespace tensorfold
