// Collective and transport over NCCL, for ranks on GPUs. Communicators are non-blocking: making one
// and every exchange are polled with a deadline, the group's end and NCCL's own asynchronous error
// in view. A thread of the collective watches both and aborts the communicator, so that a kernel
// that waits for a dead peer ends although the engine thread is inside a wait of the driver.
//
// This form takes host memory, as the forward pass hands it over today: in and out go through
// pinned and device buffers. Exchanges on device memory within a CUDA graph are a later step.
// Owner: the engine thread; the watcher only reads errors and aborts.
#pragma once

#include <memory>
#include <string>

#include "engine/cluster/transport.h"

namespace tensorfold {

inline constexpr int kNcclVersionLeast = 21'900;  // 2.19: config with blocking = 0, async errors
inline constexpr int64_t kNcclWatchMs = 100;      // between two looks for errors
inline constexpr size_t kNcclExchangeBytesMax = size_t{1} << 30;  // of one rank in one exchange

struct NcclLibrary;  // nccl_library.cuh: needs NCCL's header

// libnccl.so.2 where the loader looks, or the file that TENSORFOLD_NCCL_LIBRARY names.
Result<std::shared_ptr<const NcclLibrary>> open_nccl();
// For the fingerprint: "2.28.9 sha256:...". Two builds of one version differ.
std::string nccl_identity(const NcclLibrary& nccl);

// `device`: the GPU's index. The settings of nccl_environment.h must have been applied.
std::unique_ptr<Transport> make_nccl_transport(std::shared_ptr<const NcclLibrary> nccl, int device);

}  // namespace tensorfold
