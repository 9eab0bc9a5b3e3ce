// What the spill tests share: conversations whose records are known in advance (so that any record
// that comes back can be compared byte by byte), a tier over a given file system whose io jobs run
// when they are submitted, and a log that is kept.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/cache/spill/spill_identity.h"
#include "engine/cache/spill/spill_tier.h"

namespace tensorfold {

class KeptLog final : public LogSink {
 public:
  void write(LogLevel level, std::string_view message,
             std::initializer_list<LogField> fields) override;
  // Warnings and errors.
  std::vector<std::string> warnings() const;
  bool said(std::string_view part) const;  // at any level

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> lines_;
};

std::unique_ptr<SpillIo> make_inline_io(FileSystem& files, SpillPlace place, const Clock& clock);

// One turn of a conversation, as the cache would offer it: whole blocks, the partial one, rings.
using Turn = std::vector<CacheRecord>;

struct RecordKeyLess {
  bool operator()(const RecordKey& a, const RecordKey& b) const {
    return std::tie(a.name, a.kind) < std::tie(b.name, b.kind);
  }
};
using KeySet = std::set<RecordKey, RecordKeyLess>;

// Makes turns; remembers every record that it ever made.
class Conversations {
 public:
  static constexpr int64_t kBlockBytes = 1000;
  static constexpr int64_t kRingsBytes = 3000;

  // Continues `conversation` (a number) from its position `from` (-1: where it ended) by `tokens`.
  // `copy_of`: a new conversation that shares the first `from` positions of that one.
  Turn turn(int conversation, int64_t tokens, int64_t from = -1, int copy_of = -1);
  void set_salt(int conversation, std::string salt) { texts_[conversation].salt = std::move(salt); }
  // A block with images and generated rows in its note.
  Turn turn_with_images(int conversation);

  const CacheRecord* find(const RecordKey& key) const;
  const std::map<RecordKey, CacheRecord, RecordKeyLess>& all() const { return records_; }

 private:
  struct Text {
    std::string salt;
    std::vector<int32_t> ids;
  };
  CacheRecord block_record(const Text& text, const BlockDigest& before, int64_t first,
                           std::vector<ImageSpan> images);
  CacheRecord rings_record(const CacheNote& block, CacheNote::Kind kind);

  std::map<int, Text> texts_;
  std::map<RecordKey, CacheRecord, RecordKeyLess> records_;
};

bool same_record(const CacheRecord& a, const CacheRecord& b);

// A tier and what a head's index would know from its events.
struct World {
  World(FileSystem& files, ManualClock& clock, SpillOptions options,
        SpillTier::MakeIo make_io = make_inline_io);

  // Offers all records of the turn and lets the tier work.
  void offer(const Turn& turn);
  void take();  // events
  // Reads every record that should be on disk; gives how many were wrong and counts those missing.
  int64_t read_all(const Conversations& conversations);

  ManualClock& clock;
  KeptLog log;
  std::unique_ptr<SpillTier> tier;
  KeySet stored;  // by the events
  std::map<RecordKey, CacheNote, RecordKeyLess> notes;
  int64_t refused = 0, missing = 0, read = 0;
};

SpillOptions small_options(const std::string& root, int64_t bytes_max = int64_t{1} << 30);

}  // namespace tensorfold
