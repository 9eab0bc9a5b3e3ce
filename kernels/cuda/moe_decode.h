// moe_decode: routed and shared experts with EXL3 weights for generated rows (class D).
//
// The formula is kernels/moe_experts.h: g = bf16(w1 x), u = bf16(w3 x), clamps, z = bf16((silu(g)
// u) w_e), y = sum of w2 z in ascending expert id, the shared expert last, fp32. Three launches:
// the work list with the rotated rows; gate, up and SwiGLU; down and the sum. A trellis is read
// and decoded once per kMoeRowsPerEntry rows of its expert. Widths may differ per matrix.
//
// Row invariance: bits of a row depend on its own inputs alone. Tuned weights only: mul1, 2..6
// bits, order "lanes"; the caller takes another path for anything else.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/exl3_dense.h"

namespace tensorfold::cuda {

inline constexpr int kMoeExpertsMax = 1023;  // routed experts of a layer
inline constexpr int kMoeTopkMax = 16;
inline constexpr int kMoeRowsPerEntry = 8;  // rows of one expert that share a decode

using MoeExpertExl3 = Exl3Expert;

struct MoeDecodeParams {
  int rows = 0;
  int hidden = 0;        // H
  int intermediate = 0;  // I of this rank
  int experts = 0;       // routed ones
  int topk = 0;
  float swiglu_limit = 0;
  bool round_outputs = false;   // round each w2 z to bf16 before it is added
  const uint16_t* x = nullptr;  // bf16 [rows, H], x_stride elements apart (a multiple of 4)
  int64_t x_stride = 0;
  const int32_t* ids = nullptr;           // [rows, topk]
  const float* weights = nullptr;         // [rows, topk]
  const MoeExpertExl3* expert = nullptr;  // device memory, [experts + 1]; the shared one last
  float* y = nullptr;                     // out [rows, H]
  std::byte* workspace = nullptr;         // 256-byte aligned
  int64_t workspace_bytes = 0;            // at least moe_decode_workspace_bytes
};

int64_t moe_decode_workspace_bytes(int rows, int hidden, int intermediate, int topk);

cudaError_t moe_decode(const MoeDecodeParams& p, cudaStream_t stream, const char** where = nullptr);

}  // namespace tensorfold::cuda
