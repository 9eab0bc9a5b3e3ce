// Hashes of whole files: SHA-256, and the SHA-1 that git gives a small file's content. Files are
// read once, past the page cache's interest, and several of them at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold::models {

inline constexpr int kHashThreadsMax = 64;
inline constexpr int64_t kHashBlockBytes = int64_t{4} << 20;  // read at once, a thread

struct FileHashes {
  int64_t bytes = 0;
  std::string sha256;
  std::string git_sha1;  // of "blob SIZE\0" and the content: a blob's name in git
};

// `read_bytes` (may be null) grows while it reads; `stop` (may be null) ends it with kCancelled.
Result<FileHashes> hash_file(const std::string& path, std::atomic<int64_t>* read_bytes,
                             const std::atomic<bool>* stop);

struct HashJob {
  std::string path;
  Result<FileHashes> hashes = unavailable("not read");
};

// Fills every job, `threads` files at a time. `look` is called about every `look_ms` on the
// caller's thread with the bytes read so far.
void hash_files(std::vector<HashJob>& jobs, int threads, int64_t look_ms,
                const std::function<void(int64_t read_bytes)>& look);

}  // namespace tensorfold::models
