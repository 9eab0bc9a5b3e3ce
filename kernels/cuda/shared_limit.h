// How much dynamic shared memory kernels may take. The limit belongs to the kernel on a device, not
// to a launch or a stream: what one thread lowered would fail another's launch, so it only grows.
// Any thread.
#pragma once

#include <cuda_runtime_api.h>

namespace tensorfold::cuda {

// Before a launch with `bytes`. all: the kernel wants the whole of a multiprocessor's memory as
// shared memory, so that the next kernel's thread blocks find room.
cudaError_t allow_shared_bytes(const void* kernel, int bytes, bool all = false);

}  // namespace tensorfold::cuda
