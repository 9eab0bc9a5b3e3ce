// CudaStream: where operations are queued on a GPU, and the first error of what was queued.
//
// Owned by the engine thread. Every launch is noted with its name and shapes, so that an error that
// shows only later, at a wait, can name the kernels that may have caused it. TENSORFOLD_CUDA_SYNC=1
// waits after every launch: then it is the one named.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "kernels/op.h"

namespace tensorfold::cuda {

inline constexpr int kLaunchesKept = 6;           // of the past, for error messages
inline constexpr int kTickets = 64;               // counters of a stream
inline constexpr int64_t kPinnedBytes = 4 << 20;  // one half of the upload buffer

class CudaStream final : public Stream {
 public:
  CudaStream() = default;
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  bool create();  // false: error() says why
  int lanes() const override { return 1; }
  cudaStream_t handle() const { return stream_; }
  // Counters in device memory, [kTickets]: zero before a launch, and it leaves them so. With them
  // the last block of a launch finds out that it is the last.
  int32_t* tickets() const { return tickets_; }
  bool warms() const { return warms_; }                           // TENSORFOLD_CUDA_WARM is "on"
  int64_t shared_bytes_max() const { return shared_bytes_max_; }  // of a block, when asked for

  // Right after a launch: `kernel` is a string that stays; a, b, c are its shapes.
  void launched(const char* kernel, int64_t a, int64_t b = 0, int64_t c = 0);
  void check(cudaError_t code, const char* call);
  const std::string& error() const { return error_; }  // empty: none so far

  // kPinnedBytes of device memory for what is unpacked on its way, taken when first asked for;
  // nullptr: there is none.
  std::byte* piece();

  void allow_shared(const void* kernel, int bytes);
  void upload(void* to, const void* host, int64_t bytes);
  void wait();
  int64_t waited_ns() const { return waited_ns_; }  // in wait()

  // Between the two, launches are recorded instead of run; whatever else is asked for is an error
  // of the recording, as are errors of launches. Both return it; empty: none. The stream itself
  // stays without error, unless it had one.
  std::string begin_capture();
  std::string end_capture(cudaGraph_t* graph);

 private:
  struct Launch {
    const char* kernel = nullptr;
    int64_t a = 0, b = 0, c = 0;
  };
  void fail(cudaError_t code, const std::string& where);
  std::string recent() const;

  cudaStream_t stream_ = nullptr;
  int32_t* tickets_ = nullptr;
  std::byte* piece_ = nullptr;
  int shared_bytes_max_ = 0;
  int64_t waited_ns_ = 0;
  bool warms_ = false;
  bool wait_each_ = false;
  Launch launches_[kLaunchesKept];
  int64_t launch_count_ = 0;
  std::string error_;
  bool capturing_ = false;
  std::string capture_error_;
  // Uploads go through two halves of pinned memory, each free again when its event has passed.
  std::byte* pinned_ = nullptr;
  cudaEvent_t copied_[2] = {};
  int half_ = 0;
};

inline CudaStream& cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream); }

inline int blocks_of(int64_t count, int64_t each) {
  return static_cast<int>((count + each - 1) / each);
}

// Lets a kernel take more than 48 KB of dynamic shared memory.
template <typename Kernel>
void allow_shared(CudaStream& stream, Kernel kernel, int64_t bytes) {
  stream.allow_shared(reinterpret_cast<const void*>(kernel), static_cast<int>(bytes));
}

}  // namespace tensorfold::cuda
