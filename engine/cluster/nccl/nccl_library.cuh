// NCCL, opened at run time with a version check: the functions that the collective calls.
// Owner: shared by the transport and its collectives; never closed, its threads live in it.
// Deliberately nothing more than loading.
#pragma once

#include <nccl.h>

#include <string>

#include "engine/cluster/nccl/nccl_collective.h"

namespace tensorfold {

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

}  // namespace tensorfold
