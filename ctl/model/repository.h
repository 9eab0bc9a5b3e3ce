// A repository of model files over HTTP, as Hugging Face lays it out: what a revision is, which
// files it has with their sizes and hashes, and where each is read.
//
//   BASE/api/models/REPO/revision/REV           {"sha": full commit}
//   BASE/api/models/REPO/commits/main           [{"id": full commit}], pages by Link
//   BASE/api/models/REPO/tree/SHA?recursive=1   [{"type": "file", "path", "size", "oid",
//                                                "lfs": {"oid": SHA-256, "size"}}], pages by Link
//   BASE/REPO/resolve/SHA/PATH                  the file, perhaps by redirection
//
// A large file's hash is its LFS oid; a small one's is git's SHA-1 of its content.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ctl/model/http_transfer.h"
#include "engine/base/json.h"

namespace tensorfold::models {

inline constexpr int64_t kListingPageBytesMax = int64_t{32} << 20;
inline constexpr int kListingPagesMax = 256;
inline constexpr size_t kRepositoryFilesMax = 8192;
inline constexpr size_t kCommitDigits = 40;
inline constexpr size_t kShortCommitDigitsLeast = 7;

struct RemoteFile {
  std::string path;
  int64_t bytes = 0;
  std::string sha256;    // of a large file
  std::string git_sha1;  // of a small one: exactly one of the two is there
};

// One row of a listing, of a file.
Result<RemoteFile> remote_file(const Json& row);

class Repository {
 public:
  // Finds the full commit of a branch, a tag, a commit or the beginning of one.
  static Result<Repository> open(const HttpOptions& http, const std::string& name,
                                 const std::string& revision);

  const std::string& name() const { return name_; }
  const std::string& revision() const { return revision_; }  // 40 digits
  std::string file_url(const std::string& path) const;
  Result<std::vector<RemoteFile>> list() const;  // ascending by path

 private:
  Repository(HttpOptions http, std::string name, std::string revision)
      : http_(std::move(http)), name_(std::move(name)), revision_(std::move(revision)) {}

  HttpOptions http_;
  std::string name_, revision_;
};

}  // namespace tensorfold::models
