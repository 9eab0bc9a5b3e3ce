// hc_step of wide rows with four streams: generated rows in one launch (hc_fused.cu).
#pragma once

#include "kernels/cuda/ops.h"
#include "kernels/hc_step.h"

namespace tensorfold::cuda {

// Whether the shapes are those that it takes: four streams, a hidden size of whole runs of 1,024.
bool hc_fuses(const HcStepParams& p);
void hc_fused(const HcStepParams& p, CudaStream& stream);

// The same shapes, prompt rows (hc_prompt.cu). Workspace: hc_prompt_bytes.
void hc_prompt(const HcStepParams& p, CudaStream& stream);
int64_t hc_prompt_bytes(int rows);
// Its products with fn (hc_mixes.cu).
void hc_mixes(const HcStepParams& p, CudaStream& stream);

}  // namespace tensorfold::cuda
