// NCCL, opened at run time with a version check: the functions that the collective calls.
// Owner: shared by the transport and its collectives; never closed, its threads live in it.
// Deliberately nothing more than loading.
#pragma once

#include <memory>
#include <string>

#include "engine/base/status.h"
#include "engine/cluster/nccl/nccl_abi.h"

namespace tensorfold {

struct NcclLibrary {
  int version = 0;       // 22809: 2.28.9
  std::string path;      // the file that was loaded
  std::string identity;  // "2.28.9 sha256:...": two builds of one version differ
  NcclGetUniqueIdFn get_unique_id = nullptr;
  NcclInitRankFn init_rank = nullptr;
  NcclAsyncErrorFn async_error = nullptr;
  NcclAbortFn abort = nullptr;
  NcclAllGatherFn all_gather = nullptr;
  NcclBroadcastFn broadcast = nullptr;
  NcclErrorStringFn error_string = nullptr;
  NcclLastErrorFn last_error = nullptr;
};

// libnccl.so.2 where the loader looks, or the file that TENSORFOLD_NCCL_LIBRARY names.
Result<std::shared_ptr<const NcclLibrary>> open_nccl();

}  // namespace tensorfold
