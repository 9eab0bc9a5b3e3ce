// NCCL behind the Collective's contract. Owner: see the header.
#include "engine/cluster/nccl/nccl_collective.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

#include "engine/cluster/channel.h"
#include "engine/cluster/link_wait.h"
#include "engine/cluster/nccl/nccl_library.cuh"

namespace tensorfold {
namespace {

Status cuda_status(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return ok_status();
  return internal_error(std::string(what) + ": " + cudaGetErrorString(code));
}

// Pinned and device memory of one exchange: [own bytes], [all ranks' bytes].
class Buffers {
 public:
  ~Buffers() { release(); }
  Status reserve(size_t in_bytes, size_t out_bytes) {
    if (in_bytes <= in_bytes_ && out_bytes <= out_bytes_) return ok_status();
    release();
    TF_RETURN_IF_ERROR(cuda_status(cudaMalloc(&device_in, in_bytes), "exchange buffer"));
    TF_RETURN_IF_ERROR(cuda_status(cudaMalloc(&device_out, out_bytes), "exchange buffer"));
    TF_RETURN_IF_ERROR(cuda_status(cudaMallocHost(&host_in, in_bytes), "exchange buffer"));
    TF_RETURN_IF_ERROR(cuda_status(cudaMallocHost(&host_out, out_bytes), "exchange buffer"));
    in_bytes_ = in_bytes;
    out_bytes_ = out_bytes;
    return ok_status();
  }
  void *device_in = nullptr, *device_out = nullptr, *host_in = nullptr, *host_out = nullptr;

 private:
  void release() {
    (void)cudaFree(device_in);
    (void)cudaFree(device_out);
    (void)cudaFreeHost(host_in);
    (void)cudaFreeHost(host_out);
    device_in = device_out = host_in = host_out = nullptr;
    in_bytes_ = out_bytes_ = 0;
  }
  size_t in_bytes_ = 0, out_bytes_ = 0;
};

class NcclCollective final : public Collective {
 public:
  NcclCollective(std::shared_ptr<const NcclLibrary> nccl, int device, JoinContext context)
      : nccl_(std::move(nccl)), device_(device), context_(std::move(context)) {}

  ~NcclCollective() override {
    ended_.request();
    if (watcher_.joinable()) watcher_.join();
    abort();
    if (done_ != nullptr) (void)cudaEventDestroy(done_);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }

  Status join() {
    TF_RETURN_IF_ERROR(cuda_status(cudaSetDevice(device_), "cudaSetDevice"));
    TF_RETURN_IF_ERROR(
        cuda_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"));
    TF_RETURN_IF_ERROR(
        cuda_status(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "event"));
    // Whatever happened to the environment since the start: no multicast.
    (void)::setenv("NCCL_NVLS_ENABLE", "0", 1);
    ncclUniqueId id{};
    if (context_.invitation.size() != sizeof id) return data_loss("the head's id has a wrong size");
    std::memcpy(&id, context_.invitation.data(), sizeof id);
    context_.invitation = {};  // the caller's memory
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t made = nullptr;
    const ncclResult_t started =
        nccl_->init_rank(&made, context_.world_size, id, context_.rank, &config);
    {
      const std::lock_guard lock(mutex_);
      comm_ = made;
    }
    if (started != ncclSuccess && started != ncclInProgress) return failure_of(started);
    TF_RETURN_IF_ERROR(settle("making the communicator", context_.stop, context_.deadline_us));
    context_.stop = nullptr;
    try {
      watcher_ = std::thread([this] { watch(); });
    } catch (const std::system_error& e) {
      return unavailable(std::string("no thread to watch NCCL: ") + e.what());
    }
    return ok_status();
  }

  int rank() const override { return context_.rank; }
  int world_size() const override { return context_.world_size; }

  Status all_gather(std::span<const std::byte> in, std::span<std::byte> out) override {
    TF_CHECK_EQ(out.size(), in.size() * static_cast<size_t>(world_size()));
    TF_CHECK_LE(in.size(), kNcclExchangeBytesMax);
    TF_RETURN_IF_ERROR(failed_);
    failed_ = exchange(in, out);
    return failed_;
  }

 private:
  Status exchange(std::span<const std::byte> in, std::span<std::byte> out) {
    if (in.empty()) return ok_status();
    const int64_t deadline_us = context_.clock->monotonic_us() + context_.timers.exchange_ms * 1000;
    TF_RETURN_IF_ERROR(buffers_.reserve(in.size(), out.size()));
    std::memcpy(buffers_.host_in, in.data(), in.size());
    TF_RETURN_IF_ERROR(cuda_status(cudaMemcpyAsync(buffers_.device_in, buffers_.host_in, in.size(),
                                                   cudaMemcpyHostToDevice, stream_),
                                   "upload"));
    {
      const std::lock_guard lock(mutex_);
      if (comm_ == nullptr) return context_.health->failure();
      const ncclResult_t queued = nccl_->all_gather(buffers_.device_in, buffers_.device_out,
                                                    in.size(), ncclUint8, comm_, stream_);
      if (queued != ncclSuccess && queued != ncclInProgress) return failure_of(queued);
    }
    TF_RETURN_IF_ERROR(settle("queueing an exchange", nullptr, deadline_us));
    TF_RETURN_IF_ERROR(cuda_status(cudaMemcpyAsync(buffers_.host_out, buffers_.device_out,
                                                   out.size(), cudaMemcpyDeviceToHost, stream_),
                                   "download"));
    TF_RETURN_IF_ERROR(cuda_status(cudaEventRecord(done_, stream_), "event"));
    TF_RETURN_IF_ERROR(wait_for_event(deadline_us));
    std::memcpy(out.data(), buffers_.host_out, out.size());
    return ok_status();
  }

  // The stream is polled, not waited for: a wait of the driver could not be ended.
  Status wait_for_event(int64_t deadline_us) {
    for (;;) {
      const cudaError_t state = cudaEventQuery(done_);
      if (state == cudaSuccess) return ok_status();
      if (state != cudaErrorNotReady) return cuda_status(state, "exchange");
      if (context_.health->broken().requested()) return context_.health->failure();
      if (context_.clock->monotonic_us() >= deadline_us)
        return unavailable("an exchange over NCCL did not end in time", "slow");
      std::this_thread::yield();
    }
  }

  // Until NCCL says that what was started is done.
  Status settle(const char* what, const StopFlag* stop, int64_t deadline_us) {
    for (;;) {
      ncclResult_t state = ncclInternalError;
      {
        const std::lock_guard lock(mutex_);
        if (comm_ == nullptr) return context_.health->failure();
        const ncclResult_t asked = nccl_->async_error(comm_, &state);
        if (asked != ncclSuccess) return failure_of(asked);
      }
      if (state == ncclSuccess) return ok_status();
      if (state != ncclInProgress) return failure_of(state);
      const int64_t now = context_.clock->monotonic_us();
      if (now >= deadline_us)
        return {StatusCode::kDeadline, std::string(what) + " did not end in time"};
      LinkWait wait{context_.clock, std::min(deadline_us, now + 1000), stop,
                    &context_.health->broken()};
      if (wait_ready(-1, 0, wait).code() == StatusCode::kCancelled)
        return {StatusCode::kCancelled, std::string(what) + " was stopped"};
    }
  }

  void watch() {
    for (;;) {
      const int64_t until = context_.clock->monotonic_us() + kNcclWatchMs * 1000;
      const LinkWait wait{context_.clock, until, &ended_, &context_.health->broken()};
      (void)wait_ready(-1, 0, wait);
      if (ended_.requested()) return;
      if (context_.health->broken().requested()) return abort();
      ncclResult_t state = ncclSuccess;
      {
        const std::lock_guard lock(mutex_);
        if (comm_ == nullptr) return;
        if (nccl_->async_error(comm_, &state) != ncclSuccess) state = ncclInternalError;
      }
      if (state != ncclSuccess && state != ncclInProgress) context_.health->fail(failure_of(state));
    }
  }

  void abort() {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) (void)nccl_->abort(comm_);
    comm_ = nullptr;
  }

  Status failure_of(ncclResult_t code) const {
    std::string text = nccl_->error_string(code);
    const char* more = nccl_->last_error(nullptr);
    if (more != nullptr && *more != '\0') text += ": " + std::string(more);
    return unavailable("NCCL: " + text, "peer_lost");
  }

  const std::shared_ptr<const NcclLibrary> nccl_;
  const int device_;
  JoinContext context_;
  StopFlag ended_;
  std::mutex mutex_;           // comm_: used by the engine thread, aborted by the watcher
  ncclComm_t comm_ = nullptr;  // nullptr: aborted
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;
  Buffers buffers_;
  Status failed_;
  std::thread watcher_;
};

class NcclTransport final : public Transport {
 public:
  NcclTransport(std::shared_ptr<const NcclLibrary> nccl, int device)
      : nccl_(std::move(nccl)), device_(device) {}
  std::string_view name() const override { return "NCCL"; }

  Result<std::vector<std::byte>> invite() override {
    ncclUniqueId id{};
    const ncclResult_t made = nccl_->get_unique_id(&id);
    if (made != ncclSuccess) return unavailable(std::string("NCCL: ") + nccl_->error_string(made));
    const auto bytes = std::as_bytes(std::span(&id, 1));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }
  Result<std::unique_ptr<Collective>> join(JoinContext context) override {
    context.channels.clear();  // the link's exchange connections are not used
    auto collective = std::make_unique<NcclCollective>(nccl_, device_, std::move(context));
    TF_RETURN_IF_ERROR(collective->join());
    return std::unique_ptr<Collective>(std::move(collective));
  }

 private:
  const std::shared_ptr<const NcclLibrary> nccl_;
  const int device_;
};

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(std::shared_ptr<const NcclLibrary> nccl,
                                               int device) {
  return std::make_unique<NcclTransport>(std::move(nccl), device);
}

}  // namespace tensorfold
