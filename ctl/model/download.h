// Files over HTTP, several at a time: one thread that turns a curl_multi, threads that hash what is
// whole. A file is written beside its place as NAME.part-ID, where ID is the beginning of its hash,
// so that a later run goes on where this one stopped, and only with the same content; when its hash
// is right it is renamed into place.
//
// Not here: which files (fetch.h), what was there before (fetch.h), room on the disk (disk_room.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/model/file_hash.h"
#include "ctl/model/http_transfer.h"
#include "engine/base/clock.h"

namespace tensorfold::models {

inline constexpr int kParallelMax = 16;       // files at a time
inline constexpr int kHashAtOnceMax = 2;      // files hashed while others come
inline constexpr int kWrongHashTriesMax = 2;  // downloads of a file whose hash is wrong
inline constexpr int64_t kTurnMs = 100;       // between two looks while nothing comes
inline constexpr int64_t kReceiveBytes = int64_t{256} << 10;
inline constexpr int64_t kLimitedReceiveBytes = int64_t{16} << 10;  // with a rate limit

struct DownloadFile {
  std::string url, target;  // target: the file's place
  int64_t bytes = 0;
  std::string sha256, git_sha1;  // what is known of its content: one of them
};

// Beside the target; what other content left there is not this.
std::string part_path(const DownloadFile& file);

struct DownloadOptions {
  HttpOptions http;
  int parallel = 4;
  int64_t bytes_per_second = 0;  // of all together; 0: no limit
};

struct DownloadEvents {
  std::function<void(int64_t new_bytes)> moved;  // what came, negative when it is thrown away
  std::function<void(std::string_view line)> note;
  std::function<Status(size_t index, const FileHashes& hashes)> placed;
  std::function<void()> turn;  // now and then
};

// All files, or an error that names those that did not come. Goes on with the others when one
// fails, unless the same would happen to all.
Status download_files(const std::vector<DownloadFile>& files, const DownloadOptions& options,
                      const Clock& clock, const DownloadEvents& events);

}  // namespace tensorfold::models
