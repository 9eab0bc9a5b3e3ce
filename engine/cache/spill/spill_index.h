// SpillIndex: what lies on the disk, by name. Owned by the engine thread; no files, no clock.
//
// Snapshots are what can be resumed from, so they are what is kept: they are dropped oldest use
// first. A blocks file lives as long as something stands on it (a snapshot whose chain ends in it,
// or another blocks file that goes on behind it); with the last of these it goes too, so dropping a
// snapshot gives back the blocks that only it needed. Files of other identities only count and age.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/cache/spill/record_key.h"
#include "engine/cache/spill/spill_format.h"

namespace tensorfold {

using SpillFileId = int64_t;

// Files to remove from the disk, and the notes of what was in them.
struct SpillGone {
  std::vector<std::string> files;
  std::vector<CacheNote> notes;
};

class SpillIndex {
 public:
  struct Place {
    SpillFileId file = 0;
    size_t entry = 0;
  };

  // A file that is complete on disk. False: some of its records are known already; not added.
  bool add(SpillHeader header, int64_t used_us);
  // A file of another identity, by its path below the folder of the tier.
  void add_foreign(std::string path, int64_t bytes, int64_t used_us);

  const Place* find(const RecordKey& key) const;  // nullptr: not on disk
  const SpillHeader& header(SpillFileId file) const { return files_.at(file).header; }
  // Whether every block that this one or this snapshot stands on is there.
  bool complete(const CacheNote& note) const;
  // Blocks files keep no time of their own: what stands on them keeps them.
  void use(SpillFileId file, int64_t used_us);
  int64_t used_us(SpillFileId file) const { return files_.at(file).used_us; }

  void drop(SpillFileId file, SpillGone& gone);  // and what stood only under it
  // Oldest first until at most `bytes_max` are left and nothing is older than `oldest_us`.
  void evict(int64_t bytes_max, int64_t oldest_us, SpillGone& gone);
  void drop_over_holes(SpillGone& gone);  // what stands on blocks that are not there
  void drop_bare(SpillGone& gone);        // blocks that nothing stands on
  void clear(SpillGone& gone);

  int64_t bytes() const { return bytes_; }
  int64_t files() const { return static_cast<int64_t>(files_.size()); }
  int64_t records() const { return static_cast<int64_t>(places_.size()); }
  // Ascending by length, blocks before snapshots: nothing comes before what it stands on.
  std::vector<Place> in_order() const;

 private:
  struct File {
    bool foreign = false;
    int64_t bytes = 0;
    int64_t used_us = 0;
    std::string path;  // foreign ones
    SpillHeader header;
  };

  std::string path_of(const File& file) const;
  void stand_on(const BlockDigest& name);
  // The last one that stood there is gone: the file goes too, and so on down the chain.
  void leave(BlockDigest name, SpillGone& gone);
  bool stood_on(const File& file) const;
  void set_evictable(SpillFileId id, bool evictable);
  void erase(SpillFileId id, SpillGone& gone);

  std::map<SpillFileId, File> files_;
  std::unordered_map<RecordKey, Place, RecordKeyHash> places_;
  std::unordered_map<BlockDigest, int64_t, BlockDigestHash> standing_;  // files on this block
  std::set<std::pair<int64_t, SpillFileId>> by_use_;                    // what may be evicted
  int64_t bytes_ = 0;
  SpillFileId next_ = 1;
};

}  // namespace tensorfold
