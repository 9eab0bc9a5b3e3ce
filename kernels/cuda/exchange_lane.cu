// A GPU's side of an exchange between ranks (kernels/exchange_lane.h).
#include "kernels/exchange_lane.h"

#include <cuda_runtime.h>

#include <string>

#include "kernels/cuda/ops.h"

namespace tensorfold::cuda {
namespace {

Status status_of(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return ok_status();
  return unavailable(std::string(what) + ": " + cudaGetErrorString(code));
}

class CudaExchangeLane final : public ExchangeLane {
 public:
  explicit CudaExchangeLane(int index) : index_(index) {}
  ~CudaExchangeLane() override {
    cudaSetDevice(index_);
    release();
    if (mark_ != nullptr) cudaEventDestroy(mark_);
    if (queue_ != nullptr) cudaStreamDestroy(queue_);
  }

  Status create() {
    TF_RETURN_IF_ERROR(begin_thread());
    TF_RETURN_IF_ERROR(
        status_of(cudaStreamCreateWithFlags(&queue_, cudaStreamNonBlocking), "exchange queue"));
    return status_of(cudaEventCreateWithFlags(&mark_, cudaEventDisableTiming), "exchange mark");
  }

  Status begin_thread() override { return status_of(cudaSetDevice(index_), "cudaSetDevice"); }

  Status reserve(size_t in_bytes, size_t out_bytes) override {
    if (in_bytes <= in_bytes_ && out_bytes <= out_bytes_) return ok_status();
    release();
    TF_RETURN_IF_ERROR(status_of(cudaMalloc(&device_in_, in_bytes), "exchange memory"));
    TF_RETURN_IF_ERROR(status_of(cudaMalloc(&device_out_, out_bytes), "exchange memory"));
    TF_RETURN_IF_ERROR(status_of(cudaMallocHost(&host_in_, in_bytes), "pinned exchange memory"));
    TF_RETURN_IF_ERROR(status_of(cudaMallocHost(&host_out_, out_bytes), "pinned exchange memory"));
    in_bytes_ = in_bytes;
    out_bytes_ = out_bytes;
    return ok_status();
  }

  std::byte* host_in() override { return static_cast<std::byte*>(host_in_); }
  const std::byte* host_out() const override { return static_cast<std::byte*>(host_out_); }
  void* device_in() override { return device_in_; }
  void* device_out() override { return device_out_; }
  void* queue() override { return queue_; }

  Status follow(void* other) override {
    TF_RETURN_IF_ERROR(
        status_of(cudaEventRecord(mark_, static_cast<cudaStream_t>(other)), "exchange order"));
    return status_of(cudaStreamWaitEvent(queue_, mark_, 0), "exchange order");
  }
  Status upload(size_t bytes) override {
    return status_of(cudaMemcpyAsync(device_in_, host_in_, bytes, cudaMemcpyHostToDevice, queue_),
                     "exchange upload");
  }
  Status download(size_t bytes) override {
    return status_of(cudaMemcpyAsync(host_out_, device_out_, bytes, cudaMemcpyDeviceToHost, queue_),
                     "exchange download");
  }
  Status mark() override { return status_of(cudaEventRecord(mark_, queue_), "exchange mark"); }
  Result<bool> passed() override {
    const cudaError_t code = cudaEventQuery(mark_);
    if (code == cudaSuccess) return true;
    if (code == cudaErrorNotReady) return false;
    return status_of(code, "exchange");
  }

 private:
  void release() {
    cudaFree(device_in_);
    cudaFree(device_out_);
    cudaFreeHost(host_in_);
    cudaFreeHost(host_out_);
    device_in_ = device_out_ = host_in_ = host_out_ = nullptr;
    in_bytes_ = out_bytes_ = 0;
  }

  const int index_;
  cudaStream_t queue_ = nullptr;
  cudaEvent_t mark_ = nullptr;
  void *device_in_ = nullptr, *device_out_ = nullptr, *host_in_ = nullptr, *host_out_ = nullptr;
  size_t in_bytes_ = 0, out_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<ExchangeLane>> make_exchange_lane(int index) {
  auto lane = std::make_unique<CudaExchangeLane>(index);
  TF_RETURN_IF_ERROR(lane->create());
  return std::unique_ptr<ExchangeLane>(std::move(lane));
}

}  // namespace tensorfold::cuda
