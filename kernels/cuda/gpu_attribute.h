// What a GPU has, as far as kernels are chosen and cut by it.
//
// TENSORFOLD_CUDA_AS=gb10 (for tests): the multiprocessors, shared memory and generation of a GB10,
// where the GPU at hand has more. So the choices for a GB10 run, and are compared, on another GPU;
// with the target "90" instead of "90a" so do the kernels that take no instructions of sm_90a. Any
// thread.
#pragma once

#include <cuda_runtime_api.h>

namespace tensorfold::cuda {

cudaError_t gpu_attribute(int* to, cudaDeviceAttr what, int device);

}  // namespace tensorfold::cuda
