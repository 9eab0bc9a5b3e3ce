// Token rows to residual streams (kernels/embed_rows.h).
#include "kernels/embed_rows.h"

#include <cstring>

#include "engine/base/check.h"
#include "kernels/cpu/parallel.h"

namespace tensorfold::cpu {

void embed_rows(const EmbedRowsParams& p, Stream& stream) {
  TF_CHECK(p.table->layout == WeightLayout::kRowsBf16);
  const auto* table = static_cast<const uint16_t*>(p.table->data);
  const int64_t h = p.hidden;
  cpu_stream(stream).parallel_for(p.rows, h * p.rows * p.hc, [&](int64_t r, int) {
    const int32_t image = p.image_index != nullptr ? p.image_index[r] : -1;
    const uint16_t* row = image >= 0 ? p.image_rows + image * h : table + p.ids[r] * h;
    for (int c = 0; c < p.hc; ++c) {
      std::memcpy(p.streams + (r * p.hc + c) * h, row, static_cast<size_t>(h) * 2);
      p.pre[r * p.hc + c] = c == 0 ? 1.0f : 0.0f;
    }
  });
}

}  // namespace tensorfold::cpu
