// What the results of io jobs mean for the spill tier (see spill_tier.h).
#include <algorithm>
#include <utility>

#include "engine/cache/spill/spill_tier.h"

namespace tensorfold {
namespace {

constexpr int64_t kKeepPercent = 95;  // evict to this much, so that not every write evicts

}  // namespace

void SpillTier::on_done(SpillDone& done) {
  --jobs_out_;
  if (auto* write = std::get_if<WriteJob>(&done.work)) return on_written(done, *write);
  if (auto* read = std::get_if<ReadJob>(&done.work)) return on_read(done, *read);
  if (auto* headers = std::get_if<HeadersDone>(&done.result)) return on_headers(*headers);
  if (std::holds_alternative<ListJob>(done.work)) {
    if (auto* list = std::get_if<ListDone>(&done.result)) return on_list(*list);
    ++stats_.read_errors;
    return health_.turn_off(done.status.message(), clock_.monotonic_us());
  }
  // A file that can't be removed or touched now: the next start finds it again.
  if (!done.status.ok() && done.status.code() != StatusCode::kNotFound) ++stats_.write_errors;
}

// ---------------------------------------------------------------- the index at start

void SpillTier::on_list(ListDone& list) {
  stats_.temporary += list.temporary;
  for (FolderEntry& e : list.foreign) index_.add_foreign(std::move(e.name), e.bytes, e.modified_us);
  for (size_t first = 0; first < list.files.size(); first += kSpillHeadersMax) {
    const size_t last = std::min(list.files.size(), first + kSpillHeadersMax);
    HeadersJob job;
    job.files.assign(std::make_move_iterator(list.files.begin() + static_cast<ptrdiff_t>(first)),
                     std::make_move_iterator(list.files.begin() + static_cast<ptrdiff_t>(last)));
    ++headers_left_;
    submit(std::move(job));
  }
  if (headers_left_ == 0) finish_index();
}

void SpillTier::on_headers(HeadersDone& headers) {
  SpillGone gone;
  for (const HeadersDone::Bad& bad : headers.bad) {
    ++stats_.damaged;
    if (first_bad_.empty()) first_bad_ = bad.name + ": " + bad.why.message();
    gone.files.push_back(bad.name);
  }
  remove(gone, false);
  SpillGone twice;  // no run of ours leaves a record in two files
  for (HeadersDone::Found& f : headers.found) {
    std::string name = f.header.file_name();
    if (index_.add(std::move(f.header), f.used_us)) continue;
    twice.files.push_back(std::move(name));
    ++stats_.orphans;
  }
  remove(twice, false);
  if (--headers_left_ == 0) finish_index();
}

void SpillTier::finish_index() {
  SpillGone gone;
  if (first_valid_job_ > 0) {  // a flush came meanwhile
    index_.clear(gone);
  } else {
    for (const CacheNote& note : std::exchange(to_forget_, {})) forget_stored(key_of(note), gone);
    index_.drop_over_holes(gone);
    index_.drop_bare(gone);
    stats_.orphans += static_cast<int64_t>(gone.files.size());
    const size_t before = gone.files.size();
    index_.evict(options_.bytes_max, clock_.unix_us() - options_.age_max_us, gone);
    stats_.evicted_files += static_cast<int64_t>(gone.files.size() - before);
  }
  remove(gone, false, true);  // nobody knew them yet
  for (const SpillIndex::Place& place : index_.in_order()) {
    const SpillEntry& e = index_.header(place.file).entries[place.entry];
    events_.push_back({TierEvent::Kind::kFound, e.note, e.fingerprint, e.stem});
  }
  index_read_ = true;
  stats_.index_us = clock_.monotonic_us() - index_begun_us_;
  if (!first_bad_.empty())
    warn(std::to_string(stats_.damaged) +
         " files can't be used and are removed, the first: " + first_bad_);
  log_.info("disk cache: " + std::to_string(index_.records()) + " records in " +
            std::to_string(index_.files()) + " files, " + std::to_string(index_.bytes() >> 20) +
            " MiB, index read in " + std::to_string(stats_.index_us / 1000) + " ms");
}

// ---------------------------------------------------------------- written

void SpillTier::on_written(SpillDone& done, WriteJob& job) {
  const int64_t now = clock_.monotonic_us();
  write_progress_us_ = now;
  --writes_out_;
  const bool of_before_flush = done.id < first_valid_job_;
  const bool forgotten = writing_.at(done.id).forgotten;
  writing_.erase(done.id);
  if (done.status.reason() == kReasonDiskFull && job.attempt == 0 && !of_before_flush &&
      !forgotten && health_.on())
    return make_room_and_retry(job);
  for (const PageBuffer& r : job.records) queued_bytes_ -= r.size();
  if (forgotten) return;  // its file is being removed
  if (of_before_flush) return discard(done, job);
  for (const SpillEntry& e : job.header.entries) pending_.erase(key_of(e.note));
  const auto gone_entries = [&] {
    for (const SpillEntry& e : job.header.entries) say_gone(e.note);
  };
  if (!done.status.ok()) {
    gone_entries();
    if (done.status.code() == StatusCode::kCancelled) return;
    ++stats_.write_errors;
    if (!health_.on()) return;
    health_.turn_off(done.status.message(), now);
    io_->drop_writes();
    return;
  }
  const SpillHeader& header = job.header;
  ++stats_.written_files;
  stats_.written_bytes += header.file_bytes();
  if (done.elapsed_us > kSpillStuckUs) {
    health_.turn_off(
        "the disk is too slow: one file took " + std::to_string(done.elapsed_us / 1'000'000) + " s",
        now);
    io_->drop_writes();
  } else {
    health_.succeeded();
  }
  SpillGone gone;
  if (!index_.add(header, job.used_us)) return;
  // What it stands on may have failed or gone meanwhile.
  if (!index_.complete(header.entries.front().note)) {
    index_.drop(index_.find(key_of(header.entries.front().note))->file, gone);
    return remove(gone);
  }
  for (const SpillEntry& e : header.entries)
    events_.push_back({TierEvent::Kind::kStored, e.note, e.fingerprint, e.stem});
  const int64_t oldest = clock_.unix_us() - options_.age_max_us;
  if (index_.bytes() > options_.bytes_max) {
    index_.evict(options_.bytes_max / 100 * kKeepPercent, oldest, gone);
  } else {
    index_.evict(options_.bytes_max, oldest, gone);
  }
  stats_.evicted_files += static_cast<int64_t>(gone.files.size());
  remove(gone);
}

// Written for a time before a flush: it goes, unless it was written again since.
void SpillTier::discard(const SpillDone& done, const WriteJob& job) {
  if (!done.status.ok()) return;
  for (const SpillEntry& e : job.header.entries) {
    const RecordKey key = key_of(e.note);
    if (pending_.count(key) != 0 || index_.find(key) != nullptr) return;
  }
  remove({{job.header.file_name()}, {}});
}

void SpillTier::make_room_and_retry(WriteJob& job) {
  SpillGone gone;
  const int64_t want = std::max(2 * job.header.file_bytes(), index_.bytes() / 20);
  index_.evict(std::max<int64_t>(0, index_.bytes() - want), 0, gone);
  stats_.evicted_files += static_cast<int64_t>(gone.files.size());
  remove(gone);
  ++job.attempt;
  submit_write(std::move(job));
}

// ---------------------------------------------------------------- read

void SpillTier::on_read(SpillDone& done, ReadJob& job) {
  if (done.status.ok()) {
    read_errors_in_a_row_ = 0;
    auto& read = std::get<ReadDone>(done.result);
    stats_.read_bytes += read.bytes;
    stats_.read_us += done.elapsed_us;
    for (CacheRecord& record : read.records) {
      const auto at = staged_.find(key_of(record.note));
      if (at == staged_.end() || at->second.state != Staged::kReading) continue;
      if (clock_.monotonic_us() > at->second.deadline_us) continue;  // nobody waits for it
      ++stats_.read_records;
      at->second.record = std::move(record);
      at->second.state = Staged::kReady;
      at->second.deadline_us = clock_.monotonic_us() + kSpillStagedKeptUs;
    }
    return;
  }
  give_up_reads(job.header, job.entries);
  if (done.status.code() == StatusCode::kUnavailable) return;  // no memory: the file is good
  lose(job.header);
  const bool damaged = done.status.code() == StatusCode::kDataLoss;
  ++(damaged ? stats_.damaged : stats_.read_errors);
  warn(done.status.message() + "; the file is dropped");
  if (done.status.code() != StatusCode::kIo || !health_.on()) return;
  if (++read_errors_in_a_row_ < kSpillReadErrorsMax) return;
  read_errors_in_a_row_ = 0;
  health_.turn_off(done.status.message(), clock_.monotonic_us());
  io_->drop_writes();
}

void SpillTier::give_up_reads(const SpillHeader& header, const std::vector<size_t>& entries) {
  for (const size_t entry : entries) {
    const auto at = staged_.find(key_of(header.entries[entry].note));
    if (at == staged_.end() || at->second.state != Staged::kReading) continue;
    ++stats_.missed;
    staged_bytes_ -= at->second.bytes;
    staged_.erase(at);
  }
}

// The file is no good: it goes, and what stands on it.
void SpillTier::lose(const SpillHeader& header) {
  const SpillIndex::Place* place = index_.find(key_of(header.entries.front().note));
  if (place == nullptr || index_.header(place->file) != header) return;
  SpillGone gone;
  index_.drop(place->file, gone);
  index_.drop_over_holes(gone);
  remove(gone);
}

}  // namespace tensorfold
