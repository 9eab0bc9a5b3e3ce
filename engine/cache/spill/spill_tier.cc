// The engine thread's side of the spill tier: what comes in and goes out. What results of io jobs
// mean is in spill_results.cc.
#include "engine/cache/spill/spill_tier.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

constexpr int64_t kWarningEveryUs = 10'000'000;
constexpr int64_t kSecondUs = 1'000'000;
constexpr int64_t kTouchEveryUs = 60 * kSecondUs;

}  // namespace

SpillTier::SpillTier(SpillOptions options, FileSystem& files, const Clock& clock, LogSink& log,
                     MakeIo make_io)
    : options_(std::move(options)), clock_(clock), log_(log), health_(log) {
  stats_.bytes_max = options_.bytes_max;
  if (options_.root.empty() || options_.bytes_max <= 0) {
    index_read_ = true;
    return;
  }
  open_folder(files, make_io);
}

SpillTier::~SpillTier() = default;

void SpillTier::open_folder(FileSystem& files, MakeIo make_io) {
  folder_name_ =
      "v" + std::to_string(kSpillFormatVersion) + "-" + options_.identity.hex().substr(0, 16);
  SpillPlace place;
  place.root = options_.root;
  place.folder = options_.root + "/" + folder_name_;
  place.identity = options_.identity;
  place.free_bytes_min = options_.free_bytes_min;
  auto lock = lock_spill_folder(files, place);
  const bool taken = !lock.ok() && lock.status().reason() == kReasonLocked;
  if (!lock.ok() && !taken) {
    index_read_ = true;
    return health_.turn_off_for_good(lock.status().message());
  }
  io_ = make_io(files, std::move(place), clock_);
  if (lock.ok()) {
    lock_ = std::move(*lock);
    return begin_index();
  }
  index_read_ = true;  // nothing to wait for
  lock_retry_us_ = clock_.monotonic_us() + kSpillLockEveryUs;
  health_.turn_off_for_good("another process uses " + options_.root +
                            "; it is used when that one is gone");
}

void SpillTier::begin_index() {
  index_read_ = false;
  index_begun_us_ = clock_.monotonic_us();
  submit(ListJob{});
}

// Asks for the lock that another process had, from an io thread.
void SpillTier::wait_for_lock() {
  for (SpillDone& done : io_->take_done()) on_locked(done);
  const int64_t now = clock_.monotonic_us();
  if (lock_ != nullptr || lock_asked_ || now < lock_retry_us_) return;
  lock_asked_ = true;
  submit(LockJob{});
}

void SpillTier::on_locked(SpillDone& done) {
  --jobs_out_;
  lock_asked_ = false;
  lock_retry_us_ = clock_.monotonic_us() + kSpillLockEveryUs;
  auto* locked = std::get_if<LockDone>(&done.result);
  if (locked == nullptr) return;
  lock_ = std::move(locked->lock);
  health_.turn_on_again();
  begin_index();
}

void SpillTier::submit(SpillWork work) {
  SpillJob job;
  job.id = next_job_++;
  job.work = std::move(work);
  ++jobs_out_;
  io_->submit(std::move(job));
}

// Names are from the folder of this identity, or from the root when they have a folder in front.
void SpillTier::remove(const SpillGone& gone, bool tell, bool durable) {
  if (tell) {
    for (const CacheNote& note : gone.notes) say_gone(note);
  }
  if (gone.files.empty()) return;
  RemoveJob job;
  job.durable = durable;
  for (const std::string& file : gone.files)
    job.paths.push_back(file.find('/') == std::string::npos ? folder_name_ + "/" + file : file);
  submit(std::move(job));
}

void SpillTier::warn(const std::string& text) {
  const int64_t now = clock_.monotonic_us();
  if (now < quiet_until_us_) {
    ++unsaid_;
    return;
  }
  quiet_until_us_ = now + kWarningEveryUs;
  const std::string more = unsaid_ > 0 ? " (and " + std::to_string(unsaid_) + " more before)" : "";
  unsaid_ = 0;
  log_.warning("disk cache: " + text + more, {{"TF_EVENT", "spill_damaged"}});
}

// ---------------------------------------------------------------- out

bool SpillTier::accepts() const {
  return !disabled() && index_read_ && health_.on() && jobs_out_ < kSpillJobsMax / 2 &&
         2 * queued_bytes_ < options_.queue_bytes_max;
}

bool SpillTier::refuse(const CacheNote& note) {
  ++stats_.not_taken;
  say_gone(note);
  return false;
}

bool SpillTier::spill(const CacheNote& note, std::span<const int32_t> ids,
                      std::span<const int32_t> engram_ids, std::span<const std::byte> bytes) {
  const SpillIndex::Place* known = index_.find(key_of(note));
  if (known != nullptr) {
    const SpillEntry& e = index_.header(known->file).entries[known->entry];
    events_.push_back({TierEvent::Kind::kStored, e.note, e.fingerprint, e.stem});
    return true;
  }
  if (pending_.count(key_of(note)) != 0) return true;
  const auto size = static_cast<int64_t>(bytes.size());
  SpillEntry entry;
  entry.note = note;
  entry.bytes = size;
  if (disabled() || !index_read_ || !health_.on() || jobs_out_ >= kSpillJobsMax || size < 1 ||
      size > kSpillRecordBytesMax || 4 * size > options_.bytes_max ||
      queued_bytes_ + entry.record_bytes() > options_.queue_bytes_max)
    return refuse(note);
  PageBuffer record = encode_record(note, ids, engram_ids, bytes);
  if (record.empty()) return refuse(note);
  const bool block = note.kind == CacheNote::Kind::kBlock;
  if (!group_.records.empty()) {
    const CacheNote& last = group_.header.entries.back().note;
    const bool follows = block && note.before == last.name &&
                         note.first_position == last.first_position + kBlockPositions &&
                         last.positions == kBlockPositions;
    if (!follows) close_group();
  }
  if (group_.records.empty()) group_since_us_ = clock_.monotonic_us();
  queued_bytes_ += record.size();
  pending_.insert(key_of(note));
  group_.header.entries.push_back(std::move(entry));
  group_.records.push_back(std::move(record));
  if (!block || note.positions < kBlockPositions ||
      group_.records.size() == static_cast<size_t>(kSpillRecordsMax))
    close_group();
  return true;
}

void SpillTier::close_group() {
  if (group_.records.empty()) return;
  group_.header.identity = options_.identity;
  group_.used_us = clock_.unix_us();
  submit_write(std::exchange(group_, {}));
}

void SpillTier::submit_write(WriteJob job) {
  if (writes_out_++ == 0) write_progress_us_ = clock_.monotonic_us();
  Writing& writing = writing_[next_job_];
  writing.file = job.header.file_name();
  for (const SpillEntry& e : job.header.entries) writing.notes.push_back(e.note);
  submit(std::move(job));
}

// ---------------------------------------------------------------- in

void SpillTier::stage(const CacheNote& note) {
  const RecordKey key = key_of(note);
  if (staged_.count(key) != 0) {
    if (staged(key.name, key.kind) != Staged::kMissing) return;
    unstage(key.name, key.kind);
  }
  if (disabled()) return;
  const SpillIndex::Place* place = index_.find(key);
  if (place == nullptr) {
    ++stats_.missed;
    return;
  }
  const SpillHeader& header = index_.header(place->file);
  const int64_t bytes = header.entries[place->entry].record_bytes();
  if (staged_bytes_ + bytes > options_.staged_bytes_max || jobs_out_ >= kSpillJobsMax) {
    ++stats_.missed;
    return;
  }
  StagedRecord& s = staged_[key];
  s.bytes = bytes;
  staged_bytes_ += bytes;
  // Everything that was asked for before comes first.
  s.deadline_us =
      clock_.monotonic_us() + kSpillReadWaitUs + staged_bytes_ * kSecondUs / kSpillSlowBytesPerS;
  if (reads_.empty() || reads_.back().header.file_name() != header.file_name())
    reads_.push_back({header, {}});
  reads_.back().entries.push_back(place->entry);
  if (!header.blocks()) {
    const int64_t now = clock_.unix_us();
    if (index_.used_us(place->file) + kTouchEveryUs < now)
      submit(TouchJob{header.file_name(), now});
    index_.use(place->file, now);
  }
}

void SpillTier::submit_reads() {
  for (ReadJob& job : reads_) submit(std::move(job));
  reads_.clear();
}

CacheTier::Staged SpillTier::staged(const BlockDigest& name, CacheNote::Kind kind) const {
  const auto at = staged_.find({name, kind});
  if (at == staged_.end()) return Staged::kMissing;
  const StagedRecord& s = at->second;
  if (s.state == Staged::kReading && clock_.monotonic_us() > s.deadline_us) return Staged::kMissing;
  return s.state;
}

const CacheRecord* SpillTier::record(const BlockDigest& name, CacheNote::Kind kind) const {
  const auto at = staged_.find({name, kind});
  if (at == staged_.end() || at->second.state != Staged::kReady) return nullptr;
  return &at->second.record;
}

void SpillTier::unstage(const BlockDigest& name, CacheNote::Kind kind) {
  const auto at = staged_.find({name, kind});
  if (at == staged_.end()) return;
  staged_bytes_ -= at->second.bytes;
  staged_.erase(at);
}

// ---------------------------------------------------------------- turns

void SpillTier::poll() {
  if (io_ != nullptr && lock_ == nullptr) wait_for_lock();
  if (disabled()) return;
  if (!group_.records.empty() && clock_.monotonic_us() - group_since_us_ >= kSpillGroupWaitUs)
    close_group();
  submit_reads();
  for (SpillDone& done : io_->take_done()) on_done(done);
  check_times();
}

void SpillTier::check_times() {
  const int64_t now = clock_.monotonic_us();
  if (health_.on() && writes_out_ > 0 && now - write_progress_us_ > kSpillStuckUs) {
    health_.turn_off("the disk is too slow: no file was written in " +
                         std::to_string(kSpillStuckUs / kSecondUs) + " s",
                     now);
    io_->drop_writes();
  }
  if (health_.due(now)) {
    if (writes_out_ > 0) {
      health_.turn_off(health_.reason(), now);  // still stuck: wait longer
    } else {
      health_.try_again();
      if (!index_read_ && headers_left_ == 0) submit(ListJob{});
    }
  }
  for (auto it = staged_.begin(); it != staged_.end();) {
    StagedRecord& s = it->second;
    if (now <= s.deadline_us) {
      ++it;
      continue;
    }
    if (s.state == Staged::kReading) {
      ++stats_.missed;
      ++stats_.read_errors;
      if (health_.on()) health_.turn_off("the disk is too slow to read from", now);
    }
    staged_bytes_ -= s.bytes;
    it = staged_.erase(it);
  }
}

std::vector<TierEvent> SpillTier::take_events() {
  poll();
  return std::exchange(events_, {});
}

void SpillTier::flush() {
  if (disabled()) return;
  for (const SpillEntry& e : group_.header.entries) say_gone(e.note);
  for (const PageBuffer& r : group_.records) queued_bytes_ -= r.size();
  group_ = {};
  pending_.clear();
  to_forget_.clear();
  io_->drop_writes();
  first_valid_job_ = next_job_;
  SpillGone gone;
  index_.clear(gone);
  remove(gone);
}

// ---------------------------------------------------------------- forgetting

void SpillTier::forget(const CacheNote& note) {
  if (disabled()) return;
  const RecordKey key = key_of(note);
  unstage(key.name, key.kind);
  say_gone(note);
  if (forget_in_group(key) || forget_on_its_way(key)) return;
  if (!index_read_) {
    if (to_forget_.size() >= kSpillForgetsMax) return flush();
    to_forget_.push_back(note);
    return;
  }
  SpillGone gone;
  forget_stored(key, gone);
  remove(gone, true, true);
}

// What is wrong is the state, not its bytes: the file is whole and says what an engine stored.
void SpillTier::compared(const CacheNote& note, bool equal) {
  const auto kind = equal ? TierEvent::Kind::kProved : TierEvent::Kind::kUntrue;
  events_.push_back({kind, note, 0, 0});
  if (equal) {
    ++stats_.proved;
    return;
  }
  ++stats_.untrue;
  log_.warning("disk cache: a restored prefix of " + std::to_string(note.length()) +
                   " positions is not what this engine computes; it is dropped and its prompt "
                   "is computed",
               {{"TF_EVENT", "spill_untrue"},
                {"TF_POSITIONS", std::to_string(note.length())},
                {"TF_RECORD", note.name.hex().substr(0, 16)}});
  forget(note);
}

// The rest of the group stands on it.
bool SpillTier::forget_in_group(const RecordKey& key) {
  std::vector<SpillEntry>& entries = group_.header.entries;
  const auto at = std::find_if(entries.begin(), entries.end(),
                               [&](const SpillEntry& e) { return key_of(e.note) == key; });
  if (at == entries.end()) return false;
  const auto first = static_cast<size_t>(at - entries.begin());
  for (size_t i = first; i < entries.size(); ++i) {
    queued_bytes_ -= group_.records[i].size();
    pending_.erase(key_of(entries[i].note));
    say_gone(entries[i].note);
  }
  entries.resize(first);
  group_.records.resize(first);
  return true;
}

// The thread that writes does so in order: the file is removed behind its own write and before any
// new one of that name.
bool SpillTier::forget_on_its_way(const RecordKey& key) {
  bool found = false;
  for (auto& [job, writing] : writing_) {
    const auto is_it = [&](const CacheNote& n) { return key_of(n) == key; };
    if (writing.forgotten || job < first_valid_job_) continue;
    if (std::none_of(writing.notes.begin(), writing.notes.end(), is_it)) continue;
    writing.forgotten = found = true;
    for (const CacheNote& n : writing.notes) {
      pending_.erase(key_of(n));
      say_gone(n);
    }
    remove({{writing.file}, {}}, false, true);
  }
  return found;
}

void SpillTier::forget_stored(const RecordKey& key, SpillGone& gone) {
  const SpillIndex::Place* place = index_.find(key);
  if (place == nullptr) return;
  index_.drop(place->file, gone);
  index_.drop_over_holes(gone);
}

// ---------------------------------------------------------------- start and stop

bool SpillTier::wait_for_index(int64_t wait_us) {
  const int64_t end = clock_.monotonic_us() + wait_us;
  while (!index_read_ && health_.on()) {
    poll();
    if (index_read_ || clock_.monotonic_us() >= end) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return index_read_;
}

bool SpillTier::finish_writing(int64_t wait_us) {
  if (disabled()) return true;
  close_group();
  const int64_t end = clock_.monotonic_us() + wait_us;
  while (true) {
    poll();
    if (io_->waiting() == 0 && writes_out_ == 0) return true;
    if (clock_.monotonic_us() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

SpillStats SpillTier::stats() const {
  SpillStats s = stats_;
  using State = SpillStats::State;
  s.state = disabled()      ? State::kOff
            : !health_.on() ? State::kPaused
            : !index_read_  ? State::kReadingIndex
                            : State::kOn;
  s.reason = health_.reason();
  s.files = index_.files();
  s.records = index_.records();
  s.bytes = index_.bytes();
  s.queued_bytes = queued_bytes_;
  s.staged_bytes = staged_bytes_;
  s.times_off = health_.times_off();
  return s;
}

TierFigures SpillTier::figures() const {
  const SpillStats s = stats();
  TierFigures f;
  f.state = s.state;
  f.files = s.files;
  f.records = s.records;
  f.bytes = s.bytes;
  f.bytes_max = s.bytes_max;
  f.written_bytes = s.written_bytes;
  f.read_bytes = s.read_bytes;
  f.read_us = s.read_us;
  f.damaged = s.damaged;
  f.proved = s.proved;
  f.untrue = s.untrue;
  f.errors = s.write_errors + s.read_errors;
  f.missed = s.missed;
  f.not_taken = s.not_taken;
  f.times_off = s.times_off;
  return f;
}

}  // namespace tensorfold
