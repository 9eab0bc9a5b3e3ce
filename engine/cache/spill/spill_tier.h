// SpillTier: the disk behind the cache (engine/cache/cache_tier.h says how the two work together).
// Owned by the engine thread, which never waits here: files are touched by the io threads
// (spill_io.h), and this class decides what they do: what is written together, what is dropped when
// space or time runs out, what a fault means.
//
// Whatever goes wrong on the disk, the cache only misses something: a damaged, foreign or missing
// file is dropped with a counter and a line; a disk that is full, read-only, failing or slow turns
// writing off for a while (spill_health.h). The folder is locked: a second process runs without
// until the first one is gone, and looks for that every now and then.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/cache/cache_tier.h"
#include "engine/cache/spill/file_system.h"
#include "engine/cache/spill/spill_health.h"
#include "engine/cache/spill/spill_index.h"
#include "engine/cache/spill/spill_io.h"

namespace tensorfold {

inline constexpr int64_t kSpillQueueBytes = int64_t{128} << 20;   // waiting to be written
inline constexpr int64_t kSpillStagedBytes = int64_t{1} << 30;    // read and not yet filled in
inline constexpr int64_t kSpillFreeBytesMin = int64_t{10} << 30;  // left to others
inline constexpr int64_t kSpillAgeMaxUs = int64_t{168} * 3600 * 1'000'000;
inline constexpr int64_t kSpillGroupWaitUs = 250'000;       // a group of blocks waits for more
inline constexpr int64_t kSpillReadWaitUs = 3'000'000;      // for a read, besides what bytes take
inline constexpr int64_t kSpillSlowBytesPerS = 20 << 20;    // slower reads are given up
inline constexpr int64_t kSpillStuckUs = 20'000'000;        // no write done for so long: too slow
inline constexpr int64_t kSpillStagedKeptUs = 120'000'000;  // what nobody fetches is dropped
inline constexpr int64_t kSpillJobsMax = 65'536;            // given to the io threads, not done
inline constexpr int kSpillReadErrorsMax = 3;               // in a row, then writing stops too
inline constexpr int64_t kSpillLockEveryUs = 5'000'000;     // another process has the folder
inline constexpr size_t kSpillForgetsMax = 65'536;          // records, while the index is read

struct SpillOptions {
  std::string root;  // empty: off
  BlockDigest identity;
  int64_t bytes_max = 0;  // 0: off
  int64_t free_bytes_min = kSpillFreeBytesMin;
  int64_t age_max_us = kSpillAgeMaxUs;
  int64_t queue_bytes_max = kSpillQueueBytes;
  int64_t staged_bytes_max = kSpillStagedBytes;
};

struct SpillStats {
  using State = TierFigures::State;
  State state = State::kOff;
  std::string reason;  // why off or paused
  int64_t files = 0, records = 0, bytes = 0, bytes_max = 0;
  int64_t queued_bytes = 0, staged_bytes = 0;
  int64_t written_files = 0, written_bytes = 0;
  int64_t read_records = 0, read_bytes = 0, read_us = 0;
  int64_t not_taken = 0;  // offered while the queue was full or writing was off
  int64_t damaged = 0;    // files dropped: checksum, name, length, identity
  int64_t proved = 0;     // TierFigures
  int64_t untrue = 0;
  int64_t missed = 0;  // records that were asked for and could not be read
  int64_t write_errors = 0, read_errors = 0;
  int64_t evicted_files = 0;  // by size, age or lack of space
  int64_t orphans = 0;        // files of an interrupted run
  int64_t temporary = 0;      // temporary files removed at start
  int64_t times_off = 0;
  int64_t index_us = 0;  // to read all headers at start
};

class SpillTier final : public CacheTier {
 public:
  using MakeIo = std::unique_ptr<SpillIo> (*)(FileSystem&, SpillPlace, const Clock&);

  // Takes the lock and begins to read the index; never fails: what can't run is off and says so.
  SpillTier(SpillOptions options, FileSystem& files, const Clock& clock, LogSink& log,
            MakeIo make_io = make_spill_threads);
  ~SpillTier() override;

  bool accepts() const override;
  bool spill(const CacheNote& note, std::span<const int32_t> ids,
             std::span<const int32_t> engram_ids, std::span<const std::byte> bytes) override;
  void stage(const CacheNote& note) override;
  Staged staged(const BlockDigest& name, CacheNote::Kind kind) const override;
  const CacheRecord* record(const BlockDigest& name, CacheNote::Kind kind) const override;
  void unstage(const BlockDigest& name, CacheNote::Kind kind) override;
  std::vector<TierEvent> take_events() override;
  void forget(const CacheNote& note) override;
  void compared(const CacheNote& note, bool equal) override;
  void flush() override;
  void settle(int64_t wait_us) override { (void)finish_writing(wait_us); }

  // For start and stop, off the step path: waits until the index is read, or everything that was
  // taken is written, at most `wait_us`. False: it took longer.
  bool wait_for_index(int64_t wait_us);
  bool finish_writing(int64_t wait_us);

  SpillStats stats() const;
  TierFigures figures() const override;

 private:
  struct StagedRecord {
    Staged state = Staged::kReading;
    CacheRecord record;
    int64_t bytes = 0;
    int64_t deadline_us = 0;  // reading: to be given up; ready: to be dropped
  };

  // What a job that writes will have written; `forgotten`: it is removed again.
  struct Writing {
    std::string file;
    std::vector<CacheNote> notes;
    bool forgotten = false;
  };

  bool disabled() const { return io_ == nullptr || lock_ == nullptr; }
  void open_folder(FileSystem& files, MakeIo make_io);
  void begin_index();
  void wait_for_lock();
  void on_locked(SpillDone& done);
  void submit(SpillWork work);
  void remove(const SpillGone& gone, bool tell = true, bool durable = false);
  void say_gone(const CacheNote& note) { events_.push_back({TierEvent::Kind::kGone, note, 0, 0}); }
  bool forget_in_group(const RecordKey& key);
  bool forget_on_its_way(const RecordKey& key);
  void forget_stored(const RecordKey& key, SpillGone& gone);

  bool refuse(const CacheNote& note);
  void close_group();
  void submit_write(WriteJob job);
  void submit_reads();
  void poll();
  void check_times();

  void on_done(SpillDone& done);
  void on_list(ListDone& list);
  void on_headers(HeadersDone& headers);
  void finish_index();
  void on_written(SpillDone& done, WriteJob& job);
  void discard(const SpillDone& done, const WriteJob& job);
  void make_room_and_retry(WriteJob& job);
  void on_read(SpillDone& done, ReadJob& job);
  void lose(const SpillHeader& header);
  void give_up_reads(const SpillHeader& header, const std::vector<size_t>& entries);
  void warn(const std::string& text);

  const SpillOptions options_;
  const Clock& clock_;
  LogSink& log_;
  SpillHealth health_;
  std::string folder_name_;
  std::unique_ptr<FolderLock> lock_;  // nullptr: another process has it
  bool lock_asked_ = false;
  int64_t lock_retry_us_ = 0;
  SpillIndex index_;
  bool index_read_ = false;
  int64_t headers_left_ = 0;  // jobs
  int64_t index_begun_us_ = 0;
  std::string first_bad_;

  WriteJob group_;  // blocks that follow each other, not yet submitted
  int64_t group_since_us_ = 0;
  int64_t group_bytes_ = 0;
  std::unordered_set<RecordKey, RecordKeyHash> pending_;  // taken, not yet on disk
  int64_t queued_bytes_ = 0;
  std::map<uint64_t, Writing> writing_;  // by job
  std::vector<CacheNote> to_forget_;     // when the index has been read
  int64_t writes_out_ = 0;
  int64_t write_progress_us_ = 0;
  uint64_t next_job_ = 1;
  int64_t jobs_out_ = 0;
  uint64_t first_valid_job_ = 0;  // writes before it are of the time before a flush

  std::unordered_map<RecordKey, StagedRecord, RecordKeyHash> staged_;
  std::vector<ReadJob> reads_;  // not yet submitted
  int64_t staged_bytes_ = 0;
  int read_errors_in_a_row_ = 0;

  std::vector<TierEvent> events_;
  SpillStats stats_;
  int64_t quiet_until_us_ = 0;  // of warn()
  int64_t unsaid_ = 0;
  std::unique_ptr<SpillIo> io_;  // last: its threads end first; nullptr: off for good
};

}  // namespace tensorfold
