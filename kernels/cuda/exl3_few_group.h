// Class D products of few rows by groups of four warps. Same bits as exl3_few.cuh, quicker where a
// multiprocessor has few output blocks.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/exl3_plan.h"

namespace tensorfold::cuda {

struct FewArgs;  // exl3_few_part.cuh

inline constexpr int kExl3GroupThreadsMax = 768;

// args.plan and args.layout are exl3_group_plan's and exl3_group_shared's.
cudaError_t exl3_few_group(FewArgs& args, int bits, const Exl3Gpu& gpu, cudaStream_t stream);

}  // namespace tensorfold::cuda
