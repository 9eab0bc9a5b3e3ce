// What the io threads do for the spill tier: jobs in, results out. Threads own nothing but the
// buffers of the job that they run; what lies on the disk and what it means is the engine thread's
// (spill_index.h). Jobs are plain data.
//
// A file appears whole or not at all: written under a temporary name (kTemporaryEnd), synced,
// renamed, folder synced. Every read is checked against what the index expects before it counts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/status.h"
#include "engine/cache/spill/file_system.h"
#include "engine/cache/spill/spill_format.h"

namespace tensorfold {

inline constexpr std::string_view kTemporaryEnd = ".tmp";
inline constexpr std::string_view kSpillFileEnd = ".tfs";
inline constexpr int kSpillReadersMax = 4;    // threads that read
inline constexpr int kSpillHeadersMax = 256;  // headers read by one job
inline constexpr int64_t kFolderFilesMax = 2'000'000;

// Where the files are: `root` has the lock, `folder` below it the files of this identity.
struct SpillPlace {
  std::string root;
  std::string folder;
  BlockDigest identity;
  int64_t free_bytes_min = 0;  // of the disk, kept for others
};

// Everything below the root: our files by name, those of other identities by path and size.
// Temporary files are removed on the way.
struct ListJob {};
struct ListDone {
  std::vector<FolderEntry> files;    // in the folder, of our kind
  std::vector<FolderEntry> foreign;  // below the root, names are paths from it
  int64_t temporary = 0;             // removed
};

struct HeadersJob {
  std::vector<FolderEntry> files;
};
struct HeadersDone {
  struct Found {
    SpillHeader header;
    int64_t used_us = 0;
  };
  std::vector<Found> found;
  struct Bad {
    std::string name;
    Status why;
  };
  std::vector<Bad> bad;
};

struct WriteJob {
  SpillHeader header;               // sums are filled in
  std::vector<PageBuffer> records;  // one per entry
  int64_t used_us = 0;
  int attempt = 0;
};

struct ReadJob {
  SpillHeader header;  // as the index has it
  std::vector<size_t> entries;
};
struct ReadDone {
  std::vector<CacheRecord> records;  // in the order of ReadJob::entries
  int64_t bytes = 0;                 // that were read
};

struct RemoveJob {
  std::vector<std::string> paths;  // from the root
  bool durable = false;            // they must not come back when power fails
};
// Takes the lock of the root and makes the folders.
struct LockJob {};
struct LockDone {
  std::unique_ptr<FolderLock> lock;
};
struct TouchJob {
  std::string name;
  int64_t used_us = 0;
};

using SpillWork =
    std::variant<ListJob, HeadersJob, WriteJob, ReadJob, RemoveJob, TouchJob, LockJob>;

struct SpillJob {
  uint64_t id = 0;
  SpillWork work;
};

struct SpillDone {
  uint64_t id = 0;
  SpillWork work;  // given back
  Status status;
  std::variant<std::monostate, ListDone, HeadersDone, ReadDone, LockDone> result;
  int64_t elapsed_us = 0;
};

Result<std::unique_ptr<FolderLock>> lock_spill_folder(FileSystem& files, const SpillPlace& place);

// Runs one job. Never throws, never crashes on what it finds.
SpillDone run_spill_job(FileSystem& files, const SpillPlace& place, const Clock& clock,
                        SpillJob job);

class SpillIo {
 public:
  virtual ~SpillIo() = default;           // what waits is dropped
  virtual void submit(SpillJob job) = 0;  // the tier bounds how many
  virtual std::vector<SpillDone> take_done() = 0;
  virtual void drop_writes() = 0;       // those that have not begun
  virtual int64_t waiting() const = 0;  // not done yet
};

// One thread that writes (so what was submitted first is on the disk first), a few that read.
std::unique_ptr<SpillIo> make_spill_threads(FileSystem& files, SpillPlace place,
                                            const Clock& clock);

}  // namespace tensorfold
