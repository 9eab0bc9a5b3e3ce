// Dense products of prompt rows on compute capability 9.0 (exl3_prefill.h chooses).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/exl3_dense.h"

namespace tensorfold::cuda {

// y of one weight from rotated rows (prefill_rows.cuh). sms: multiprocessors of the GPU.
cudaError_t exl3_prefill_wide(const Exl3DenseJob& job, int rows, const uint16_t* x, int sms,
                              cudaStream_t stream);

// The same, faster for many rows and slower for few: decode and products in warps apart.
cudaError_t exl3_prefill_apart(const Exl3DenseJob& job, int rows, const uint16_t* x, int sms,
                               cudaStream_t stream);

}  // namespace tensorfold::cuda
