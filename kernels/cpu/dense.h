// The matrix product under every CPU operation.
//
// y[r][n] = sum_k w[n][k] x[r][k], rounded once to fp32 or bf16. Products and the sum are fp64, k
// ascending, whatever the blocking: products of bf16 and fp32 values are exact, so a result hardly
// ever differs from the rounded exact sum, and one order serves every row count. 16 outputs of a
// panel run in the lanes of vectors.
#pragma once

#include <cstdint>

#include "kernels/cpu/parallel.h"
#include "kernels/op.h"
#include "kernels/weight_view.h"

namespace tensorfold::cpu {

inline constexpr int kDenseTaskPanels = 8;  // panels per task
inline constexpr int kDenseTaskRows = 64;   // rows per task

// One output block: panels [panel, panel + panels) of w for rows [0, rows) of x (x_stride apart).
// type says what y points to; columns past w.out are not written.
struct DenseBlock {
  const WeightView* w = nullptr;
  int panel = 0;
  int panels = 0;
  int rows = 0;
  const double* x = nullptr;  // fp32 values
  int64_t x_stride = 0;
  void* y = nullptr;  // row 0, column 0
  int64_t y_stride = 0;
  ValueType type = ValueType::kF32;
};
void dense_block(const DenseBlock& block);

// A whole product, split into tasks over the stream.
struct DenseJob {
  const WeightView* w = nullptr;
  const double* x = nullptr;  // fp32 values
  int64_t x_stride = 0;
  int rows = 0;
  void* y = nullptr;
  int64_t y_stride = 0;
  ValueType type = ValueType::kF32;
  int64_t first_task = 0;  // set by dense()
};
void dense(DenseJob* jobs, int count, CpuStream& stream);

}  // namespace tensorfold::cpu
