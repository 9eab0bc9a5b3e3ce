// exl3_dense: products of generated rows (class D) with EXL3 weights, several weights in one
// launch. y = ((((x * suh) H) W_q) H) * svh, per row and weight, x extended by zeros to padded_in,
// y trimmed to `out` (engine/weights/exl3_codec.h). Tuned: mul1, 2..6 bits, order "lanes";
// everything else goes through exl3_any (same class, its own order).
//
// Row invariance: bits of a row depend on that row and the weight alone, however the work is cut
// (exl3_fixed.cuh). Relative norm against exact arithmetic: 3e-4 with fp32 outputs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/op.h"
#include "kernels/weight_view.h"

namespace tensorfold::cuda {

inline constexpr int kExl3JobsMax = 8;        // weights of one launch
inline constexpr int kExl3RowsMax = 1 << 16;  // rows of one call

struct Exl3DenseJob {
  Exl3Parts weight;
  int in = 0, out = 0;          // logical sizes, at most the padded ones
  const uint16_t* x = nullptr;  // bf16 [rows, in], x_stride elements apart, 8-byte aligned rows
  int64_t x_stride = 0;         // a multiple of 4
  void* y = nullptr;            // [rows, out], y_stride elements apart
  int64_t y_stride = 0;
  ValueType type = ValueType::kBf16;
};

// Of few rows: kWarps by single warps, kGroups by four; kMany: the kernels of many rows for any
// number (with a workspace).
enum class Exl3DenseKernels : uint8_t { kChosen, kWarps, kGroups, kMany };

struct Exl3DenseParams {
  int rows = 0;
  int jobs = 0;
  Exl3DenseJob job[kExl3JobsMax];
  // Other choices than the best, same bits: for tests and benches.
  int cluster = 0;  // thread blocks that share an output block
  int warps = 0;    // of a thread block (kGroups)
  Exl3DenseKernels kernels = Exl3DenseKernels::kChosen;
  // For more than kExl3FewRows rows: exl3_dense_workspace_bytes, 256-byte aligned. Without it, or
  // with less, the weights are decoded more often.
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// Whether the tuned instance serves a weight; the others take exl3_any.
constexpr bool exl3_is_tuned(const Exl3Parts& w) {
  return w.order == Exl3Order::kLanes && w.codebook == 2 && w.half_bits % 2 == 0 &&
         w.half_bits >= 4 && w.half_bits <= 12;
}

// Of `jobs` weights of one launch; rows go through it in groups of kExl3WorkspaceRows.
inline constexpr int kExl3WorkspaceRows = 512;
int64_t exl3_dense_workspace_bytes(int rows, int padded_in, int jobs);

// Queues the products. Weights of the same width and input size share a launch. Returns the first
// error; *where (if given) then names the kernel and the shapes.
cudaError_t exl3_dense(const Exl3DenseParams& p, cudaStream_t stream, const char** where = nullptr);

// Any width, codebook and order; slow. Called by exl3_dense.
cudaError_t exl3_any(const Exl3DenseJob& job, int rows, cudaStream_t stream);

// W_q as fp16 bits [padded_in, padded_out] (what the codec decodes), through the tuned windows
// where the weight has them, else through the run-time decoder. `run_time` forces the latter.
cudaError_t exl3_unpack(const Exl3Parts& w, uint16_t* out, bool run_time, cudaStream_t stream);

// Device copies between orders: tiles -> lanes; `from` and `to` do not overlap. 1..8 whole bits.
cudaError_t exl3_repack(const Exl3Parts& from, uint32_t* to, cudaStream_t stream);
// A piece of it: groups [first, first + count) of 64 inputs of the stored trellis, which lie at
// `piece`, into their places of the whole at `to`.
cudaError_t exl3_repack_groups(const Exl3Parts& stored, const void* piece, int first, int count,
                               uint32_t* to, cudaStream_t stream);

}  // namespace tensorfold::cuda
