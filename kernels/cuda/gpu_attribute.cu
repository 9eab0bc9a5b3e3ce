#include "kernels/cuda/gpu_attribute.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tensorfold::cuda {
namespace {

bool as_gb10() {
  static const bool set = [] {
    const char* name = std::getenv("TENSORFOLD_CUDA_AS");
    return name != nullptr && std::strcmp(name, "gb10") == 0;
  }();
  return set;
}

}  // namespace

cudaError_t gpu_attribute(int* to, cudaDeviceAttr what, int device) {
  const cudaError_t e = cudaDeviceGetAttribute(to, what, device);
  if (e != cudaSuccess || !as_gb10()) return e;
  if (what == cudaDevAttrMultiProcessorCount) *to = std::min(*to, 48);
  if (what == cudaDevAttrMaxSharedMemoryPerBlockOptin) *to = std::min(*to, 99 * 1024);
  if (what == cudaDevAttrMaxSharedMemoryPerMultiprocessor) *to = std::min(*to, 100 * 1024);
  if (what == cudaDevAttrComputeCapabilityMajor) *to = 12;
  return e;
}

}  // namespace tensorfold::cuda
