// exl3_prefill: products of prompt rows (class P) with EXL3 weights. The same formula as
// exl3_dense; the rows are rotated once to fp16, the weights decoded exactly (fp16) in registers
// and multiplied on the matrix units with one fp32 chain over the inputs per output, whatever the
// number of rows. Tuned weights only (exl3_is_tuned); exl3_any serves the others.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/exl3_dense.h"
#include "kernels/cuda/moe_decode.h"

namespace tensorfold::cuda {

inline constexpr int kPrefillTileRows = 128;  // rows of a dense tile

int64_t exl3_prefill_workspace_bytes(int rows, int padded_in);
// y of one weight. Workspace: 256-byte aligned, exl3_prefill_workspace_bytes long.
cudaError_t exl3_prefill(const Exl3DenseJob& job, int rows, void* workspace,
                         int64_t workspace_bytes, cudaStream_t stream,
                         const char** where = nullptr);

// The MoE of prompt rows, with the parameters of moe_decode. Each expert's trellis is decoded once
// per 32, 64 or 128 of its rows, by the mean number of rows of an expert.
int64_t moe_prefill_workspace_bytes(int rows, int hidden, int intermediate, int topk);
cudaError_t moe_prefill(const MoeDecodeParams& p, cudaStream_t stream,
                        const char** where = nullptr);

}  // namespace tensorfold::cuda
