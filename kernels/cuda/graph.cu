// See kernels/cuda/graph.h.
#include "kernels/cuda/graph.h"

#include <string>

namespace tensorfold::cuda {
namespace {

class CudaGraph final : public StepGraph {
 public:
  CudaGraph(cudaGraphExec_t exec, cudaStream_t stream, int nodes)
      : exec_(exec), stream_(stream), nodes_(nodes) {}
  ~CudaGraph() override {
    cudaStreamSynchronize(stream_);  // it may be running; an error shows at the next wait
    cudaGraphExecDestroy(exec_);
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  int nodes() const override { return nodes_; }
  int64_t bytes() const override { return nodes_ * kGraphNodeBytes; }
  cudaGraphExec_t exec() const { return exec_; }

 private:
  cudaGraphExec_t exec_;
  cudaStream_t stream_;
  int nodes_;
};

Status failed(const char* call, cudaError_t code) {
  return unavailable(std::string(call) + ": " + cudaGetErrorName(code) + ": " +
                     cudaGetErrorString(code));
}

// The recorded launches as something that can be run; uploaded, so that the first run is like all.
Result<std::unique_ptr<StepGraph>> make(cudaGraph_t graph, cudaStream_t stream) {
  size_t nodes = 0;
  cudaError_t code = cudaGraphGetNodes(graph, nullptr, &nodes);
  if (code != cudaSuccess) return failed("cudaGraphGetNodes", code);
  if (nodes == 0) return unavailable("nothing was queued");
  cudaGraphExec_t exec = nullptr;
  code = cudaGraphInstantiate(&exec, graph, 0);
  if (code != cudaSuccess) return failed("cudaGraphInstantiate", code);
  std::unique_ptr<StepGraph> made =
      std::make_unique<CudaGraph>(exec, stream, static_cast<int>(nodes));
  code = cudaGraphUpload(exec, stream);
  if (code != cudaSuccess) return failed("cudaGraphUpload", code);
  return Result<std::unique_ptr<StepGraph>>(std::move(made));
}

}  // namespace

Status begin_graph(CudaStream& stream) {
  const std::string problem = stream.begin_capture();
  return problem.empty() ? ok_status() : unavailable(problem);
}

Result<std::unique_ptr<StepGraph>> end_graph(CudaStream& stream) {
  cudaGraph_t graph = nullptr;
  const std::string problem = stream.end_capture(&graph);
  Result<std::unique_ptr<StepGraph>> made =
      problem.empty() ? make(graph, stream.handle())
                      : Result<std::unique_ptr<StepGraph>>(unavailable(problem));
  if (graph != nullptr) stream.check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  cudaGetLastError();  // said in the Status; not to be met again at the next launch
  return made;
}

void run_graph(StepGraph& graph, CudaStream& stream) {
  auto& g = static_cast<CudaGraph&>(graph);
  stream.check(cudaGraphLaunch(g.exec(), stream.handle()), "cudaGraphLaunch");
  stream.launched("recorded step", g.nodes());
}

}  // namespace tensorfold::cuda
