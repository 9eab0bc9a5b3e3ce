// NCCL, opened at run time with a version check: the functions that the collective calls.
// Owner: shared by the transport and its collectives; never closed, its threads live in it.
// Deliberately nothing more than loading.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

#include "engine/base/status.h"

namespace tensorfold {

inline constexpr int kNcclVersionLeast = 21'900;  // 2.19: config with blocking = 0, async errors

struct NcclLibrary {
  int version = 0;       // 22809: 2.28.9
  std::string path;      // the file that was loaded
  std::string identity;  // "2.28.9 sha256:...": two builds of one version differ
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
};

// libnccl.so.2 where the loader looks, or the file that TENSORFOLD_NCCL_LIBRARY names.
Result<std::shared_ptr<const NcclLibrary>> open_nccl();

}  // namespace tensorfold
