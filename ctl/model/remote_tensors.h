// A few small tensors out of large files of a repository, read by their ranges: safetensors headers
// first, then the tensors' bytes, all into one new file. What is read this way can't be checked
// against the repository's hashes, which are of whole files; headers are checked as those of local
// files are.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/model/repository.h"

namespace tensorfold::models {

inline constexpr int64_t kHeaderGuessBytes = int64_t{256} << 10;  // read first; most fit
inline constexpr int64_t kRemoteTensorBytesMax = int64_t{1} << 20;
inline constexpr size_t kRemoteTensorsMax = 4096;

struct RemoteTensor {
  std::string name;
  RemoteFile file;  // that has it
};

// Reads the tensors and writes them to `target`, whole or not at all.
Status fetch_tensors(const Repository& repository, const HttpOptions& http,
                     const std::vector<RemoteTensor>& tensors, const std::string& target,
                     const std::function<void(std::string_view)>& note);

}  // namespace tensorfold::models
