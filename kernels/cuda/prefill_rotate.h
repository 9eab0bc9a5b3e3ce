// What comes before the products of prompt rows (class P): rows rotated to fp16, in the order in
// which a step of the products takes them, and the work list of the experts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/exl3_dense.h"

namespace tensorfold::cuda {

struct MoeDecodeArgs;

// Rows of job.x into `to` [rows, padded_in].
cudaError_t launch_prefill_rotate(const Exl3DenseJob& job, int rows, uint16_t* to,
                                  cudaStream_t stream);
// The list, and each (row, expert, matrix)'s rotated row.
cudaError_t launch_moe_prefill_prepare(const MoeDecodeArgs& args, int multiprocessors,
                                       cudaStream_t stream);

}  // namespace tensorfold::cuda
