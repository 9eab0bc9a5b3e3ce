// Token rows to residual streams (kernels/embed_rows.h).
#include "engine/base/check.h"
#include "kernels/cuda/ops.h"

namespace tensorfold::cuda {
namespace {

__global__ void embed_rows_kernel(EmbedRowsParams p, const uint16_t* table) {
  const int64_t r = blockIdx.x, h = p.hidden;
  const int32_t image = p.image_index != nullptr ? p.image_index[r] : -1;
  const uint16_t* row = image >= 0 ? p.image_rows + image * h : table + p.ids[r] * h;
  const auto* from = reinterpret_cast<const uint4*>(row);
  const int fours = p.hidden / 8;  // hidden is a multiple of 32
  for (int i = threadIdx.x; i < fours; i += blockDim.x) {
    const uint4 v = from[i];
    for (int c = 0; c < p.hc; ++c) reinterpret_cast<uint4*>(p.streams + (r * p.hc + c) * h)[i] = v;
  }
  if (threadIdx.x < p.hc) p.pre[r * p.hc + threadIdx.x] = threadIdx.x == 0 ? 1.0f : 0.0f;
}

}  // namespace

void embed_rows(const EmbedRowsParams& p, Stream& stream) {
  TF_CHECK(p.table->layout == WeightLayout::kRowsBf16);
  if (p.rows == 0) return;
  CudaStream& s = cuda_stream(stream);
  embed_rows_kernel<<<p.rows, 128, 0, s.handle()>>>(p, static_cast<const uint16_t*>(p.table->data));
  s.launched("embed_rows", p.rows, p.hidden, p.hc);
}

}  // namespace tensorfold::cuda
