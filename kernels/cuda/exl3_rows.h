// EXL3 products of an operation's rows, split by their numeric class: the first prompt_rows rows
// are class P (exl3_prefill, moe_prefill), the others class D (exl3_dense, moe_decode). The class
// alone decides, never how many rows there are: a short chunk of a prompt stays in class P.
//
// Rows go to the kernels in groups, so that the workspace stays bounded; a row's bits don't depend
// on its group.
#pragma once

#include <cstdint>

#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream.h"

namespace tensorfold::cuda {

inline constexpr int kExl3PromptRows = 4096;    // of a group of experts' rows
inline constexpr int kExl3GeneratedRows = 256;  // likewise
inline constexpr int kExl3GroupedWeights = 4;   // of one input whose generated rows have room

// The outputs of `p` whose weights are kExl3, for rows x (bf16, already normed).
void exl3_project(const ProjectParams& p, const uint16_t* x, int64_t x_stride, Pieces& pieces,
                  CudaStream& stream);
int64_t exl3_project_bytes(const WorkspaceShape& s);

// Logits of rows x [rows, hidden]: class D for every row.
void exl3_logits(const HeadLogitsParams& p, const uint16_t* x, Pieces& pieces, CudaStream& stream);
int64_t exl3_logits_bytes(const WorkspaceShape& s);

// p.exl3_on_device is there.
void exl3_experts(const MoeExpertsParams& p, CudaStream& stream);
int64_t exl3_experts_bytes(const WorkspaceShape& s);

}  // namespace tensorfold::cuda
