// The part of NCCL's binary interface that is used, declared here so that building needs no NCCL:
// the library is opened at run time with a version check (nccl_library.h). Stable since NCCL 2.19;
// the configuration is a prefix whose size tells a newer library where it ends.
// tests/engine/cluster/nccl_abi_test.cc holds it to NCCL's own header where that is.
#pragma once

#include <climits>
#include <cstddef>

namespace tensorfold {

inline constexpr size_t kNcclIdBytes = 128;
inline constexpr unsigned int kNcclConfigMagic = 0xCAFEBEEF;
inline constexpr int kNcclVersionLeast = 21'900;  // 2.19: configurations with blocking = 0
inline constexpr int kNcclByteType = 1;           // ncclUint8

enum NcclCode : int {
  kNcclSuccess = 0,
  kNcclInternalError = 3,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};

struct NcclId {
  char bytes[kNcclIdBytes];
};

struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned int magic = kNcclConfigMagic;
  unsigned int version = kNcclVersionLeast;
  int blocking = INT_MIN;  // INT_MIN, nullptr: NCCL's choice
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

using NcclComm = struct NcclCommOpaque*;

// `queue` is a cudaStream_t.
extern "C" {
using NcclGetVersionFn = NcclCode (*)(int* version);
using NcclGetUniqueIdFn = NcclCode (*)(NcclId* id);
using NcclInitRankFn = NcclCode (*)(NcclComm* comm, int ranks, NcclId id, int rank,
                                    NcclConfig* config);
using NcclAsyncErrorFn = NcclCode (*)(NcclComm comm, NcclCode* error);
using NcclAbortFn = NcclCode (*)(NcclComm comm);
using NcclAllGatherFn = NcclCode (*)(const void* in, void* out, size_t count, int type,
                                     NcclComm comm, void* queue);
using NcclBroadcastFn = NcclCode (*)(const void* in, void* out, size_t count, int type, int root,
                                     NcclComm comm, void* queue);
using NcclErrorStringFn = const char* (*)(NcclCode code);
using NcclLastErrorFn = const char* (*)(NcclComm comm);
}

}  // namespace tensorfold
