// DiskNames: which records are on disk, by name, and which prefix of a text they hold. Owned by the
// engine thread of the head; pure.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/cache/cache_tier.h"
#include "engine/cache/prefix_index.h"
#include "engine/cache/spill/record_key.h"

namespace tensorfold {

// What a query may start from. No positions: nothing.
struct DiskPrefix {
  int64_t positions = 0;  // at least so many; a text that differs near the end may give more
  CacheNote snapshot;
  std::vector<CacheNote> chain;  // its blocks from the first on; the last may be a partial one
};

class DiskNames {
 public:
  void add(const TierEvent& event);
  void remove(const CacheNote& note);
  bool has(const RecordKey& key) const;
  // The first block of the chain that this block ends; none: a part of it is not there.
  std::optional<CacheNote> first_block(BlockDigest name) const;
  int64_t blocks() const { return count_; }

  // The longest prefix of the query that a snapshot on disk serves, by the rules of `options`
  // (engine/cache/prefix_index.h).
  DiskPrefix find(const PrefixQuery& query, const PrefixOptions& options) const {
    return find(root_digest(query.salt), query, options);
  }
  // The same under a given root, whatever the query's salt.
  DiskPrefix find(const BlockDigest& root, const PrefixQuery& query,
                  const PrefixOptions& options) const;

 private:
  struct Block {
    bool there = false;  // false: only its place, for its children
    CacheNote note;
    uint64_t fingerprint = 0, stem = 0;
    std::vector<BlockDigest> children;
    std::vector<CacheNote> snapshots;  // that end with it, one of a kind
  };
  struct Search;

  void look_at(const Block& block, Search& search, std::vector<BlockDigest>& next) const;
  void consider(const Block& block, int64_t equal, Search& search) const;

  std::unordered_map<BlockDigest, Block, BlockDigestHash> blocks_;
  int64_t count_ = 0;
};

}  // namespace tensorfold
