// CudaGraph: launches of a CudaStream recorded by stream capture (kernels/step_graph.h).
#pragma once

#include <memory>

#include "engine/base/status.h"
#include "kernels/cuda/stream.h"
#include "kernels/step_graph.h"

namespace tensorfold::cuda {

inline constexpr int64_t kGraphNodeBytes = 1024;  // of device memory, a generous estimate

// What is queued on the stream from begin to end is recorded, programmatic launches included. end:
// the first error of anything that was asked for in between, or of making the graph.
Status begin_graph(CudaStream& stream);
Result<std::unique_ptr<StepGraph>> end_graph(CudaStream& stream);
void run_graph(StepGraph& graph, CudaStream& stream);

}  // namespace tensorfold::cuda
