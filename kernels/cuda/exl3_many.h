// Class D products of more than a few rows: the rows are rotated and quantised once by a kernel of
// their own, then every 128 outputs are decoded once for 32 rows. Same bits as for few rows
// (exl3_fixed.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/exl3_dense.h"
#include "kernels/cuda/exl3_many_plan.h"

namespace tensorfold::cuda {

// Weights of the same input size; `workspace` has `jobs` times exl3_many_bytes.
struct Exl3ManyArgs {
  int rows = 0, jobs = 0, columns = 0;
  int shift = 0;            // exl3_sum_shift
  bool streams = false;     // stream_hint()
  Exl3ManyWorkspace parts;  // of one weight
  uint8_t* workspace = nullptr;
  Exl3ManyPlan plan;
  Exl3ManyShared layout;
  int first_column[kExl3JobsMax + 1] = {};
  Exl3DenseJob job[kExl3JobsMax];
};

// Rotation, then products. `bits`: the largest of the jobs'.
cudaError_t exl3_many(Exl3ManyArgs& args, int bits, const Exl3Gpu& gpu, int cluster,
                      cudaStream_t stream);

}  // namespace tensorfold::cuda
