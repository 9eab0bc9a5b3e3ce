// Launches that may begin before the one ahead of them has ended (programmatic dependent launch).
//
// A kernel that is launched so calls begin_programmatic() before it reads or writes anything that
// an earlier launch writes or reads; what it does before that (prefetches of weights) overlaps the
// end of the launch ahead.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/stream.h"

namespace tensorfold::cuda {

// The next launch may start to take free multiprocessors; this one goes on when all before it have
// ended and their writes are seen.
__device__ __forceinline__ void begin_programmatic() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// 128 bytes of weights on their way to the L2.
__device__ __forceinline__ void prefetch_line(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// cluster: thread blocks along x that share a cluster.
template <typename Kernel, typename... Args>
void launch_programmatic(CudaStream& stream, Kernel kernel, dim3 grid, int threads, int64_t bytes,
                         int cluster, const Args&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream.handle();
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = cluster == 1 ? 1 : 2;
  stream.check(cudaLaunchKernelEx(&config, kernel, args...), "cudaLaunchKernelEx");
}

}  // namespace tensorfold::cuda
