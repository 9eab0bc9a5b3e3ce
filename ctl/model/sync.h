// tfctl model sync: a model folder to another machine, with rsync over ssh, and verified there by
// the hashes of its record.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ctl/model/progress.h"
#include "engine/base/status.h"

namespace tensorfold::models {

struct SyncOptions {
  std::string host, folder, there;  // there: the folder on the other machine
  int64_t bytes_per_second = 0;     // 0: no limit
  int threads = 1;                  // to hash a folder without a record
  bool terminal = false;            // rsync draws its progress
};

// The exit status of the verification there (0: every file is right). An error names the step that
// failed.
Result<int> sync_model(const SyncOptions& options, Progress& progress);

}  // namespace tensorfold::models
