// What is read once a step (codes of generated rows) may leave the L2 before what is read again:
// kernels' own code, activations, tables. A hint; no result depends on it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace tensorfold::cuda {

// TENSORFOLD_CUDA_STREAM is not "off".
inline bool stream_hint() {
  static const bool on = [] {
    const char* set = std::getenv("TENSORFOLD_CUDA_STREAM");
    return set == nullptr || std::strcmp(set, "off") != 0;
  }();
  return on;
}

// The L2 policy of a load: evicted first, or as any other.
__device__ __forceinline__ uint64_t stream_policy(bool first) {
  uint64_t policy;
  if (first)
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  else
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

}  // namespace tensorfold::cuda
