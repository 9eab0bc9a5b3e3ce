// Registers memory with an RDMA device, as NCCL will, and gives it back: some kernels refuse even a
// page, which otherwise shows only when the ranks connect, after minutes of loading.
//
// libibverbs is opened when it is there; nothing is linked. Takes up to kRegistrationBytesMax of
// memory for a moment, less where this user may lock less.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tensorfold::preflight {

inline constexpr int64_t kRegistrationBytesLeast = 4096;
inline constexpr int64_t kRegistrationBytesMax = int64_t{256} << 20;
inline constexpr const char* kVerbsLibrary = "libibverbs.so.1";

struct RdmaMemory {
  int64_t registered_bytes = 0;  // the most that worked
  int64_t refused_bytes = 0;     // the least that did not; 0: nothing was refused
  std::string problem;           // why not
  int64_t limit_bytes = 0;       // RLIMIT_MEMLOCK where it kept the trial small; 0: it did not
};

// Nothing: the library or the device is not there.
std::optional<RdmaMemory> register_rdma_memory(const std::string& device,
                                               const char* library = kVerbsLibrary);

}  // namespace tensorfold::preflight
