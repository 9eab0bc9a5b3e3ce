// Class D products of few rows by groups of four warps: mma.sync, or wgmma on sm_90a (`wide`),
// where the rows' bytes lie in shared memory four times. Same bits as exl3_few.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/exl3_few.cuh"

namespace tensorfold::cuda {

inline constexpr int kExl3GroupThreadsMax = 768;

// Whether this build has the wide kernel for the current GPU.
bool exl3_few_wide_runs(int major);

// args.plan and args.layout are exl3_group_plan's and exl3_group_shared's.
cudaError_t exl3_few_group(FewArgs& args, int bits, bool wide, const Exl3Gpu& gpu,
                           cudaStream_t stream);

}  // namespace tensorfold::cuda
