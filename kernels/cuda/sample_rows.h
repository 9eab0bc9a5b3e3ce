// sample_rows on a GPU (kernels/sample_rows.h): two launches, whatever the rows ask for.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/sample_rows.h"

namespace tensorfold::cuda {

// Everything p points at is device memory. The first error of the launches.
cudaError_t sample_rows(const SampleRowsParams& p, cudaStream_t stream);

}  // namespace tensorfold::cuda
