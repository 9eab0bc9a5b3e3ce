// ConstraintService: from a request's ConstraintSpec to a MaskSource, once for equal specs.
//
// A cache bounded in bytes, least recently used out first; refusals are kept too, so that a hostile
// schema costs its work once. Equal specs that arrive together are compiled once and awaited
// (single flight). What was given out stays valid when it is forgotten here.
// Threads: any; compile() blocks for as long as a compilation takes (its limits are counts of work,
// not time) and belongs on a worker. The automaton behind a source grows while it is used: one that
// has outgrown its share is not given out again but made anew.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/status.h"
#include "engine/grammar/constraint_spec.h"
#include "engine/grammar/mask_source.h"

namespace tensorfold::grammar {
class Matcher;
class VocabImage;
}  // namespace tensorfold::grammar

namespace tensorfold {

inline constexpr size_t kConstraintCacheBytes = size_t{256} << 20;
inline constexpr size_t kConstraintOneMaxBytes = size_t{64} << 20;  // then it is made anew
inline constexpr size_t kConstraintEntriesMax = 4096;

struct Constraint {
  std::shared_ptr<const MaskSource> source;
  std::vector<std::string> ignored;  // formats and keywords taken as annotations
};

class ConstraintService {
 public:
  explicit ConstraintService(std::shared_ptr<const grammar::VocabImage> vocab,
                             size_t cache_bytes = kConstraintCacheBytes);

  // `in_reasoning`: the reply begins inside reasoning, whatever spec.reasoning says.
  Result<Constraint> compile(const grammar::ConstraintSpec& spec, bool in_reasoning);

  struct Counters {
    uint64_t hits = 0, misses = 0, waits = 0, forgotten = 0;
    size_t entries = 0, bytes = 0;
  };
  Counters counters() const;

 private:
  struct Entry {
    bool ready = false;
    Status status;
    std::shared_ptr<const grammar::Matcher> matcher;
    std::vector<std::string> ignored;
    std::list<std::string>::iterator place;
  };
  std::shared_ptr<Entry> find_or_begin(const std::string& key, bool& mine);
  void make(const grammar::ConstraintSpec& spec, Entry& entry) const;
  void shrink();
  static size_t bytes_of(const Entry& entry);

  const std::shared_ptr<const grammar::VocabImage> vocab_;
  const size_t cache_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::unordered_map<std::string, std::shared_ptr<Entry>> entries_;
  std::list<std::string> order_;  // keys, most recently used first
  Counters counters_;
};

}  // namespace tensorfold
