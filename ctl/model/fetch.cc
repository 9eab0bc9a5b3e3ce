#include "ctl/model/fetch.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "ctl/model/disk_room.h"

namespace tensorfold::models {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLookMs = 200;

// Held on the folder itself while a fetch works on it; the kernel lets go when the process ends.
class FolderLock {
 public:
  static Result<std::unique_ptr<FolderLock>> take(const std::string& folder) {
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return io_error(folder, errno);
    auto lock = std::unique_ptr<FolderLock>(new FolderLock(fd));
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
    return unavailable(folder + ": another 'tfctl model fetch' works on it");
  }
  ~FolderLock() { ::close(fd_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_;
};

int hash_threads() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

class Fetch {
 public:
  Fetch(const FetchOptions& options, const Clock& clock, Progress& progress)
      : options_(options), clock_(clock), progress_(progress) {}

  Result<FetchReport> run() {
    TF_ASSIGN_OR_RETURN(plan_,
                        make_plan(options_.download.http, options_.repository, options_.revision));
    TF_RETURN_IF_ERROR(make_folders(options_.folder));
    TF_ASSIGN_OR_RETURN(const std::unique_ptr<FolderLock> lock, FolderLock::take(options_.folder));
    TF_RETURN_IF_ERROR(begin_record());
    TF_RETURN_IF_ERROR(look_at_what_is_there());
    TF_RETURN_IF_ERROR(check_room(options_.folder, missing_bytes()));
    TF_RETURN_IF_ERROR(fetch_missing());
    TF_RETURN_IF_ERROR(fetch_small_tensors());
    TF_RETURN_IF_ERROR(save_record(options_.folder, record_));
    return report();
  }

 private:
  std::string place(const std::string& path) const { return options_.folder + "/" + path; }
  int source_of(size_t repository) const { return sources_[repository]; }

  // The new record has the plan's sources; files of other repositories stay in it.
  Status begin_record() {
    drop_files(options_.folder, std::string(kRecordName) + ".tmp-");  // of a run that was killed
    Record old;
    if (has_record(options_.folder)) {
      TF_ASSIGN_OR_RETURN(old, load_record(options_.folder));
    }
    for (const Repository& repository : plan_.repositories) {
      sources_.push_back(record_.source_index({repository.name(), repository.revision()}));
      progress_.note(repository.name() + " at " + repository.revision());
    }
    for (RecordFile& file : old.files) {
      const bool made_here = file.source < 0;
      const RecordSource source =
          made_here ? RecordSource() : old.sources[static_cast<size_t>(file.source)];
      const auto same = [&](const RecordSource& s) {
        return s.repository == source.repository && s.revision != source.revision;
      };
      const bool outdated = std::any_of(record_.sources.begin(), record_.sources.end(), same);
      const bool wanted = std::any_of(plan_.files.begin(), plan_.files.end(),
                                      [&](const WantedFile& w) { return w.path == file.path; });
      if (outdated) {  // its content may be the same; where it came from counts no more
        file.source = -1;
        known_.put(file);
        if (!wanted && file.path != kBiasFile) {
          progress_.note(place(file.path) + ": of an earlier revision, not of this one; it stays");
        }
        continue;
      }
      if (!made_here) file.source = record_.source_index(source);
      known_.put(file);
      if (!wanted) record_.put(file);
    }
    return ok_status();
  }

  // Whether the record vouches for the file as it lies there.
  bool vouched(const WantedFile& wanted, const FileState& state) const {
    const RecordFile* known = known_.find(wanted.path);
    if (known == nullptr || known->bytes != state.bytes || known->mtime_ns != state.mtime_ns) {
      return false;
    }
    if (!wanted.remote.sha256.empty()) return known->sha256 == wanted.remote.sha256;
    return known->source == source_of(wanted.repository);
  }

  void keep(const WantedFile& wanted, const std::string& sha256) {
    const FileState state = file_state(place(wanted.path));
    record_.put({wanted.path, state.bytes, sha256, source_of(wanted.repository), state.mtime_ns});
  }

  Status look_at_what_is_there() {
    std::vector<HashJob> jobs;
    std::vector<const WantedFile*> asked;
    int64_t bytes = 0;
    for (const WantedFile& wanted : plan_.files) {
      const FileState state = file_state(place(wanted.path));
      if (state.bytes != wanted.remote.bytes) {
        missing_.push_back(&wanted);
      } else if (vouched(wanted, state)) {
        keep(wanted, known_.find(wanted.path)->sha256);
      } else {
        asked.push_back(&wanted);
        jobs.push_back({place(wanted.path)});
        bytes += state.bytes;
      }
    }
    if (!jobs.empty()) {
      progress_.note(std::to_string(jobs.size()) + " files are there; their hashes are checked");
      progress_.start(bytes, 0, static_cast<int>(jobs.size()));
      hash_files(jobs, hash_threads(), kLookMs, [&](int64_t read) { progress_.look(read, 0); });
      progress_.end();
    }
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (!jobs[i].hashes.ok()) return jobs[i].hashes.status();
      const FileHashes& found = *jobs[i].hashes;
      const RemoteFile& remote = asked[i]->remote;
      if (remote.sha256.empty() ? found.git_sha1 == remote.git_sha1
                                : found.sha256 == remote.sha256) {
        keep(*asked[i], found.sha256);
      } else {
        progress_.note(jobs[i].path + ": its hash is not the repository's; it comes anew");
        missing_.push_back(asked[i]);
      }
    }
    return save_record(options_.folder, record_);
  }

  DownloadFile download_of(const WantedFile& wanted) const {
    return {plan_.repositories[wanted.repository].file_url(wanted.remote.path), place(wanted.path),
            wanted.remote.bytes, wanted.remote.sha256, wanted.remote.git_sha1};
  }

  int64_t part_bytes(const WantedFile& wanted) const {
    const int64_t bytes = file_state(part_path(download_of(wanted))).bytes;
    return std::clamp<int64_t>(bytes, 0, wanted.remote.bytes);
  }

  int64_t missing_bytes() const {
    int64_t bytes = 0;
    for (const WantedFile* wanted : missing_) bytes += wanted->remote.bytes - part_bytes(*wanted);
    return bytes;
  }

  // Files of a folder whose name begins so, but for one.
  static void drop_files(const fs::path& folder, const std::string& start,
                         const std::string& but = "") {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind(start, 0) != 0 || name == but) continue;
      std::error_code ignored;
      fs::remove(entry.path(), ignored);
    }
  }

  // Parts of other content of the same file: an earlier revision's.
  static void drop_old_parts(const DownloadFile& file) {
    const fs::path target(file.target);
    drop_files(target.parent_path(), target.filename().string() + ".part-",
               fs::path(part_path(file)).filename().string());
  }

  Status fetch_missing() {
    // The largest first: what is left at the end is short.
    std::stable_sort(missing_.begin(), missing_.end(), [](const auto* a, const auto* b) {
      return a->remote.bytes > b->remote.bytes;
    });
    std::vector<DownloadFile> files;
    int64_t total = 0, done = 0;
    for (const WantedFile& wanted : plan_.files) total += wanted.remote.bytes;
    done = total;
    for (const WantedFile* wanted : missing_) {
      files.push_back(download_of(*wanted));
      TF_RETURN_IF_ERROR(make_folders(fs::path(files.back().target).parent_path().string()));
      drop_old_parts(files.back());
      done -= wanted->remote.bytes - part_bytes(*wanted);
    }
    report_.bytes = total;
    report_.files = plan_.files.size();
    report_.fetched_files = files.size();
    if (files.empty()) return ok_status();
    int placed = static_cast<int>(plan_.files.size() - files.size());
    progress_.start(total, done, static_cast<int>(plan_.files.size()));
    DownloadEvents events;
    events.moved = [&](int64_t bytes) {
      done += bytes;
      report_.fetched_bytes += std::max<int64_t>(0, bytes);
    };
    events.note = [&](std::string_view line) { progress_.note(line); };
    events.turn = [&] { progress_.look(done, placed); };
    events.placed = [&](size_t i, const FileHashes& hashes) -> Status {
      ++placed;
      keep(*missing_[i], hashes.sha256);
      progress_.note(files[i].target + ": " + size_text(hashes.bytes) + ", hash right");
      return save_record(options_.folder, record_);
    };
    const Status status = download_files(files, options_.download, clock_, events);
    progress_.look(done, placed);
    progress_.end();
    return status;
  }

  Status fetch_small_tensors() {
    report_.engram = !plan_.tensors.empty();
    if (plan_.tensors.empty()) return ok_status();
    const std::string path(kBiasFile), target = place(path);
    const int source = source_of(plan_.tensors_from);
    const RecordFile* known = known_.find(path);
    const FileState state = file_state(target);
    if (known != nullptr && known->source == source && known->bytes == state.bytes &&
        known->mtime_ns == state.mtime_ns) {
      record_.put(*known);
      return ok_status();
    }
    TF_RETURN_IF_ERROR(fetch_tensors(plan_.repositories[plan_.tensors_from], options_.download.http,
                                     plan_.tensors, target,
                                     [&](std::string_view line) { progress_.note(line); }));
    TF_ASSIGN_OR_RETURN(const FileHashes hashes, hash_file(target, nullptr, nullptr));
    record_.put({path, hashes.bytes, hashes.sha256, source, file_state(target).mtime_ns});
    return ok_status();
  }

  FetchReport report() {
    report_.sources = record_.sources;
    return report_;
  }

  const FetchOptions& options_;
  const Clock& clock_;
  Progress& progress_;
  Plan plan_;
  Record known_, record_;     // of an earlier run; of this one
  std::vector<int> sources_;  // of each repository, in record_
  std::vector<const WantedFile*> missing_;
  FetchReport report_;
};

}  // namespace

Result<FetchReport> fetch_model(const FetchOptions& options, const Clock& clock,
                                Progress& progress) {
  return Fetch(options, clock, progress).run();
}

}  // namespace tensorfold::models
