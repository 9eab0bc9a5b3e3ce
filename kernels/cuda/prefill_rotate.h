// What comes before the products of prompt rows (class P): rows rotated to fp16, in the order in
// which a step of the products takes them (the experts' rows: moe_prefill_args.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/exl3_dense.h"

namespace tensorfold::cuda {

// Rows of job.x into `to`, as prefill_rows.cuh has it.
cudaError_t launch_prefill_rotate(const Exl3DenseJob& job, int rows, uint16_t* to,
                                  cudaStream_t stream);

}  // namespace tensorfold::cuda
