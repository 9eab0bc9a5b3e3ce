#include "kernels/cuda/shared_limit.h"

#include <map>
#include <mutex>
#include <utility>

namespace tensorfold::cuda {
namespace {

constexpr int kWithoutAsking = 48 * 1024;

struct Limit {
  int bytes = kWithoutAsking;
  bool all = false;
};

}  // namespace

cudaError_t allow_shared_bytes(const void* kernel, int bytes, bool all) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, Limit> limits;  // by device and kernel
  if (bytes <= kWithoutAsking && !all) return cudaSuccess;
  int device = 0;
  cudaError_t e = cudaGetDevice(&device);
  if (e != cudaSuccess) return e;
  const std::lock_guard lock(mutex);
  Limit& limit = limits[{device, kernel}];
  if (bytes > limit.bytes) {
    e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess) return e;
    limit.bytes = bytes;
  }
  if (all && !limit.all) {
    e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
    if (e != cudaSuccess) return e;
    limit.all = true;
  }
  return cudaSuccess;
}

}  // namespace tensorfold::cuda
