// NCCL behind the Collective's contract. Owner: see the header.
#include "engine/cluster/nccl/nccl_collective.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/cluster/channel.h"
#include "engine/cluster/device_exchange.h"
#include "engine/cluster/link_wait.h"

namespace tensorfold {
namespace {

class NcclCollective final : public Collective, public DeviceExchange {
 public:
  NcclCollective(std::shared_ptr<const NcclLibrary> nccl, std::unique_ptr<ExchangeLane> lane,
                 JoinContext context)
      : nccl_(std::move(nccl)), context_(std::move(context)), lane_(std::move(lane)) {}

  ~NcclCollective() override {
    ended_.request();
    if (watcher_.joinable()) watcher_.join();
    abort();
  }

  Status join();

  int rank() const override { return context_.rank; }
  int world_size() const override { return context_.world_size; }

  Status all_gather(std::span<const std::byte> in, std::span<std::byte> out) override {
    TF_CHECK_EQ(out.size(), in.size() * static_cast<size_t>(world_size()));
    TF_CHECK_LE(in.size(), kNcclExchangeBytesMax);
    TF_RETURN_IF_ERROR(failed_);
    if (in.empty()) return ok_status();
    failed_ = exchange(in, out, [this](size_t bytes) {
      return nccl_->all_gather(lane_->device_in(), lane_->device_out(), bytes, kNcclByteType, comm_,
                               lane_->queue());
    });
    return failed_;
  }

  Status broadcast(std::span<std::byte> data, int root) override {
    TF_CHECK(root >= 0 && root < world_size());
    TF_CHECK_LE(data.size(), kNcclExchangeBytesMax);
    TF_RETURN_IF_ERROR(failed_);
    if (data.empty()) return ok_status();
    failed_ = exchange(data, data, [this, root](size_t bytes) {
      return nccl_->broadcast(lane_->device_in(), lane_->device_out(), bytes, kNcclByteType, root,
                              comm_, lane_->queue());
    });
    return failed_;
  }

  DeviceExchange* on_device() override { return this; }
  void begin() override { step_begun_us_.store(now_us(), std::memory_order_relaxed); }
  Status end() override {
    step_begun_us_.store(kNoStep, std::memory_order_relaxed);
    if (failed_.ok() && context_.health->broken().requested()) failed_ = context_.health->failure();
    return failed_;
  }
  Status gather(const void* in, void* out, size_t bytes, void* queue) override {
    TF_CHECK_LE(bytes, kNcclExchangeBytesMax);
    TF_RETURN_IF_ERROR(failed_);
    if (bytes == 0) return ok_status();
    step_queue_ = queue;
    failed_ = start([&] { return nccl_->all_gather(in, out, bytes, kNcclByteType, comm_, queue); },
                    now_us() + context_.timers.exchange_ms * 1000);
    return failed_;
  }

 private:
  static constexpr int64_t kNoStep = -1;

  template <typename Queue>
  Status start(const Queue& queue, int64_t deadline_us);
  template <typename Queue>
  Status exchange(std::span<const std::byte> in, std::span<std::byte> out, const Queue& queue);
  Status settle(const char* what, const StopFlag* stop, int64_t deadline_us);
  Status wait_for_mark(int64_t deadline_us);
  Status nap(int64_t begin_us, int64_t deadline_us, const StopFlag* stop, const char* what) const;
  void watch();
  Status overdue() const;

  // The call itself outside of the mutex: it ends when the recorded steps that hold the
  // communicator are gone, which the engine thread sees to.
  void abort() {
    NcclComm comm = nullptr;
    {
      const std::lock_guard lock(mutex_);
      std::swap(comm, comm_);
    }
    if (comm != nullptr) (void)nccl_->abort(comm);
  }
  // Under the mutex: the last error is the communicator's.
  Status failure_of(NcclCode code) const {
    const char* said = nccl_->error_string(code);
    std::string text = said != nullptr ? said : "error " + std::to_string(code);
    const char* more = nccl_->last_error(comm_);
    if (more != nullptr && *more != '\0') text += ": " + std::string(more);
    return unavailable("NCCL: " + text, "peer_lost");
  }
  int64_t now_us() const { return context_.clock->monotonic_us(); }

  const std::shared_ptr<const NcclLibrary> nccl_;
  JoinContext context_;
  const std::unique_ptr<ExchangeLane> lane_;  // outlives the communicator
  StopFlag ended_;
  std::mutex mutex_;            // comm_: used by the engine thread, aborted by the watcher
  NcclComm comm_ = nullptr;     // nullptr: aborted
  void* step_queue_ = nullptr;  // where the last exchange on device memory was queued
  std::atomic<int64_t> step_begun_us_{kNoStep};
  Status failed_;
  std::thread watcher_;
};

Status NcclCollective::join() {
  TF_RETURN_IF_ERROR(lane_->begin_thread());
  const auto world = static_cast<size_t>(context_.world_size);
  TF_RETURN_IF_ERROR(lane_->reserve(kNcclFirstBytes, world * kNcclFirstBytes));
  NcclId id{};
  if (context_.invitation.size() != sizeof id) return data_loss("the head's id has a wrong size");
  std::memcpy(&id, context_.invitation.data(), sizeof id);
  context_.invitation = {};  // the caller's memory
  NcclConfig config;
  config.blocking = 0;
  {
    const std::lock_guard lock(mutex_);
    const NcclCode started =
        nccl_->init_rank(&comm_, context_.world_size, id, context_.rank, &config);
    if (started != kNcclSuccess && started != kNcclInProgress) return failure_of(started);
  }
  TF_RETURN_IF_ERROR(settle("making the communicator", context_.stop, context_.deadline_us));
  context_.stop = nullptr;
  try {
    watcher_ = std::thread([this] { watch(); });
  } catch (const std::system_error& e) {
    return unavailable(std::string("no thread to watch NCCL: ") + e.what());
  }
  return ok_status();
}

// One call of the library that queues something, until it is queued.
template <typename Queue>
Status NcclCollective::start(const Queue& queue, int64_t deadline_us) {
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return context_.health->failure();
    const NcclCode queued = queue();
    if (queued != kNcclSuccess && queued != kNcclInProgress) return failure_of(queued);
  }
  return settle("queueing an exchange", nullptr, deadline_us);
}

template <typename Queue>
Status NcclCollective::exchange(std::span<const std::byte> in, std::span<std::byte> out,
                                const Queue& queue) {
  const int64_t deadline_us = now_us() + context_.timers.exchange_ms * 1000;
  TF_RETURN_IF_ERROR(lane_->begin_thread());
  TF_RETURN_IF_ERROR(lane_->reserve(in.size(), out.size()));
  std::memcpy(lane_->host_in(), in.data(), in.size());
  if (step_queue_ != nullptr) TF_RETURN_IF_ERROR(lane_->follow(step_queue_));
  TF_RETURN_IF_ERROR(lane_->upload(in.size()));
  TF_RETURN_IF_ERROR(start([&] { return queue(in.size()); }, deadline_us));
  TF_RETURN_IF_ERROR(lane_->download(out.size()));
  TF_RETURN_IF_ERROR(lane_->mark());
  TF_RETURN_IF_ERROR(wait_for_mark(deadline_us));
  // An exchange that was aborted ends like one that was done, with anything in its memory.
  if (context_.health->broken().requested()) return context_.health->failure();
  std::memcpy(out.data(), lane_->host_out(), out.size());
  return ok_status();
}

// The queue is polled, not waited for: a wait of the driver could not be ended.
Status NcclCollective::wait_for_mark(int64_t deadline_us) {
  for (const int64_t begin_us = now_us();;) {
    TF_ASSIGN_OR_RETURN(const bool passed, lane_->passed());
    if (passed) return ok_status();
    const Status waited = nap(begin_us, deadline_us, nullptr, "an exchange");
    if (waited.code() == StatusCode::kDeadline) return unavailable(waited.message(), "slow");
    TF_RETURN_IF_ERROR(waited);
  }
}

// Until NCCL says that what was started is done.
Status NcclCollective::settle(const char* what, const StopFlag* stop, int64_t deadline_us) {
  for (const int64_t begin_us = now_us();;) {
    {
      const std::lock_guard lock(mutex_);
      if (comm_ == nullptr) return context_.health->failure();
      NcclCode state = kNcclInternalError;
      const NcclCode asked = nccl_->async_error(comm_, &state);
      if (asked != kNcclSuccess) return failure_of(asked);
      if (state == kNcclSuccess) return ok_status();
      if (state != kNcclInProgress) return failure_of(state);
    }
    TF_RETURN_IF_ERROR(nap(begin_us, deadline_us, stop, what));
  }
}

// Between two looks: at once at first, for most waits are short, later a little asleep.
Status NcclCollective::nap(int64_t begin_us, int64_t deadline_us, const StopFlag* stop,
                           const char* what) const {
  const int64_t now = now_us();
  if (context_.health->broken().requested()) return context_.health->failure();
  if (stop != nullptr && stop->requested())
    return {StatusCode::kCancelled, std::string(what) + " was stopped"};
  if (now >= deadline_us)
    return {StatusCode::kDeadline, std::string(what) + " over NCCL did not end in time"};
  if (now - begin_us < kNcclSpinUs) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(kNcclNapUs));
  }
  return ok_status();
}

void NcclCollective::watch() {
#ifdef TF_PLANTED_FAULT  // tests: nobody looks
  return;
#endif
  (void)lane_->begin_thread();
  for (;;) {
    const int64_t until = now_us() + kNcclWatchMs * 1000;
    const LinkWait wait{context_.clock, until, &ended_, &context_.health->broken()};
    (void)wait_ready(-1, 0, wait);
    if (ended_.requested()) return;
    if (context_.health->broken().requested()) return abort();
    Status why;
    {
      const std::lock_guard lock(mutex_);
      if (comm_ == nullptr) return;
      NcclCode state = kNcclSuccess;
      if (nccl_->async_error(comm_, &state) != kNcclSuccess) state = kNcclInternalError;
      if (state != kNcclSuccess && state != kNcclInProgress) why = failure_of(state);
    }
    if (why.ok()) why = overdue();
    if (!why.ok()) context_.health->fail(why);
  }
}

// A step's wait for its device ends with the device's work alone: where a peer lives and does not
// come to an exchange, time must end it.
Status NcclCollective::overdue() const {
  const int64_t begun_us = step_begun_us_.load(std::memory_order_relaxed);
  if (begun_us == kNoStep || now_us() - begun_us < context_.timers.exchange_ms * 1000)
    return ok_status();
  return unavailable("a step's exchanges over NCCL did not end in time", "slow");
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(std::shared_ptr<const NcclLibrary> nccl, MakeExchangeLane make_lane)
      : nccl_(std::move(nccl)), make_lane_(std::move(make_lane)) {}
  std::string_view name() const override { return "NCCL"; }

  Result<std::vector<std::byte>> invite() override {
    no_multicast();
    NcclId id{};
    const NcclCode made = nccl_->get_unique_id(&id);
    if (made != kNcclSuccess) return unavailable(std::string("NCCL: ") + nccl_->error_string(made));
    const auto bytes = std::as_bytes(std::span(&id, 1));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }
  Result<std::unique_ptr<Collective>> join(JoinContext context) override {
    no_multicast();
    context.channels.clear();  // the link's exchange connections are not used
    TF_ASSIGN_OR_RETURN(auto lane, make_lane_());
    auto collective = std::make_unique<NcclCollective>(nccl_, std::move(lane), std::move(context));
    TF_RETURN_IF_ERROR(collective->join());
    return std::unique_ptr<Collective>(std::move(collective));
  }

 private:
  // Whatever happened to the environment since the start. NCCL reads it with its first
  // communicator; set only where it is not, because other threads may read the environment.
  static void no_multicast() {
    const char* now = std::getenv("NCCL_NVLS_ENABLE");
    if (now == nullptr || std::strcmp(now, "0") != 0) (void)::setenv("NCCL_NVLS_ENABLE", "0", 1);
  }

  const std::shared_ptr<const NcclLibrary> nccl_;
  const MakeExchangeLane make_lane_;
};

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(std::shared_ptr<const NcclLibrary> nccl,
                                               MakeExchangeLane make_lane) {
  return std::make_unique<NcclTransport>(std::move(nccl), std::move(make_lane));
}

}  // namespace tensorfold
