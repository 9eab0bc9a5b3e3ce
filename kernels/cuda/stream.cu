// See kernels/cuda/stream.h.
#include "kernels/cuda/stream.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/gpu_attribute.h"
#include "kernels/cuda/shared_limit.h"

namespace tensorfold::cuda {

CudaStream::~CudaStream() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  for (cudaEvent_t event : copied_)
    if (event != nullptr) cudaEventDestroy(event);
  if (pinned_ != nullptr) cudaFreeHost(pinned_);
  if (tickets_ != nullptr) cudaFree(tickets_);
  if (piece_ != nullptr) cudaFree(piece_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

bool CudaStream::create() {
  wait_each_ = std::getenv("TENSORFOLD_CUDA_SYNC") != nullptr;
  const char* warm = std::getenv("TENSORFOLD_CUDA_WARM");
  warms_ = warm != nullptr && std::strcmp(warm, "on") == 0;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(gpu_attribute(&shared_bytes_max_, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "cudaDeviceGetAttribute");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaHostAlloc(reinterpret_cast<void**>(&pinned_), 2 * kPinnedBytes, cudaHostAllocDefault),
        "cudaHostAlloc");
  check(cudaMalloc(reinterpret_cast<void**>(&tickets_), kTickets * sizeof(int32_t)), "cudaMalloc");
  if (error_.empty())
    check(cudaMemsetAsync(tickets_, 0, kTickets * sizeof(int32_t), stream_), "cudaMemsetAsync");
  for (cudaEvent_t& event : copied_)
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  return error_.empty();
}

std::string CudaStream::recent() const {
  std::string text;
  const int64_t first = std::max<int64_t>(0, launch_count_ - kLaunchesKept);
  for (int64_t i = launch_count_ - 1; i >= first; --i) {
    const Launch& l = launches_[i % kLaunchesKept];
    text += (text.empty() ? "" : ", ") + std::string(l.kernel) + " (" + std::to_string(l.a) +
            " x " + std::to_string(l.b) + " x " + std::to_string(l.c) + ")";
  }
  return text;
}

void CudaStream::fail(cudaError_t code, const std::string& where) {
  std::string& error = capturing_ ? capture_error_ : error_;
  if (!error.empty()) return;
  error = std::string(cudaGetErrorName(code)) + ": " + cudaGetErrorString(code) + ", " + where;
}

void CudaStream::launched(const char* kernel, int64_t a, int64_t b, int64_t c) {
  launches_[launch_count_++ % kLaunchesKept] = {kernel, a, b, c};
  cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess && wait_each_ && !capturing_) code = cudaStreamSynchronize(stream_);
  if (code != cudaSuccess)
    fail(code, std::string("kernel ") + kernel + " (" + std::to_string(a) + " x " +
                   std::to_string(b) + " x " + std::to_string(c) + ")");
}

void CudaStream::check(cudaError_t code, const char* call) {
  if (code != cudaSuccess)
    fail(code, std::string(call) +
                   (launch_count_ > 0 ? "; last kernels, newest first: " + recent() : ""));
}

void CudaStream::allow_shared(const void* kernel, int bytes) {
  check(allow_shared_bytes(kernel, bytes), "cudaFuncSetAttribute");
}

std::byte* CudaStream::piece() {
  if (piece_ == nullptr &&
      cudaMalloc(reinterpret_cast<void**>(&piece_), kPinnedBytes) != cudaSuccess) {
    cudaGetLastError();  // the caller goes another way
    piece_ = nullptr;
  }
  return piece_;
}

void CudaStream::upload(void* to, const void* host, int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(host);
  auto* at = static_cast<std::byte*>(to);
  if (capturing_) return fail(cudaErrorStreamCaptureUnsupported, "an upload while recording");
  while (bytes > 0 && error_.empty()) {
    const int64_t n = std::min(bytes, kPinnedBytes);
    std::byte* half = pinned_ + half_ * kPinnedBytes;
    check(cudaEventSynchronize(copied_[half_]), "cudaEventSynchronize");
    std::memcpy(half, from, static_cast<size_t>(n));
    check(cudaMemcpyAsync(at, half, static_cast<size_t>(n), cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync to the device");
    check(cudaEventRecord(copied_[half_], stream_), "cudaEventRecord");
    half_ ^= 1;
    from += n;
    at += n;
    bytes -= n;
  }
}

void CudaStream::wait() {
  if (capturing_) return fail(cudaErrorStreamCaptureUnsupported, "a wait while recording");
  const auto begin = std::chrono::steady_clock::now();
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  waited_ns_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
}

std::string CudaStream::begin_capture() {
  if (!error_.empty()) return error_;
  if (wait_each_) return "TENSORFOLD_CUDA_SYNC waits after every launch";
  const cudaError_t code = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
  if (code != cudaSuccess) {
    cudaGetLastError();
    return std::string("cudaStreamBeginCapture: ") + cudaGetErrorString(code);
  }
  capture_error_.clear();
  capturing_ = true;
  return "";
}

std::string CudaStream::end_capture(cudaGraph_t* graph) {
  check(cudaStreamEndCapture(stream_, graph), "cudaStreamEndCapture");
  capturing_ = false;
  return capture_error_;
}

}  // namespace tensorfold::cuda
