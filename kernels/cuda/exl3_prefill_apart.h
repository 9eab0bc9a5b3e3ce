// Dense products of prompt rows on compute capability 9.0, another form (exl3_prefill.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/exl3_dense.h"

namespace tensorfold::cuda {

// y of one weight from rotated rows (prefill_rows.cuh): decode and products in warps apart. sms:
// multiprocessors of the GPU.
cudaError_t exl3_prefill_apart(const Exl3DenseJob& job, int rows, const uint16_t* x, int sms,
                               cudaStream_t stream);

}  // namespace tensorfold::cuda
