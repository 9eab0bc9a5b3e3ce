#include "daemon/service/uv_port.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold::service {
namespace {

struct Job {
  uv_work_t request;
  std::function<void()> work, done;
};

}  // namespace

UvPort::UvPort(uv_loop_t* loop, std::function<void()> on_wake)
    : loop_(loop), on_wake_(std::move(on_wake)), fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TF_CHECK(fd_ >= 0);
  TF_CHECK_EQ(uv_poll_init(loop, &poll_, fd_), 0);
  poll_.data = this;
  const int code = uv_poll_start(&poll_, UV_READABLE, [](uv_poll_t* poll, int, int) {
    static_cast<UvPort*>(poll->data)->on_readable();
  });
  TF_CHECK_EQ(code, 0);
  uv_unref(reinterpret_cast<uv_handle_t*>(&poll_));
}

UvPort::~UvPort() { ::close(fd_); }

void UvPort::wake() {
  if (told_.exchange(true, std::memory_order_acq_rel)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);
}

// Taken before the events are: who tells after this writes again.
void UvPort::on_readable() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd_, &count, sizeof count);
  told_.exchange(false, std::memory_order_acq_rel);
  on_wake_();
}

void UvPort::run_on_worker(std::function<void()> work, std::function<void()> done) {
  auto job = std::make_unique<Job>(Job{{}, std::move(work), std::move(done)});
  job->request.data = job.get();
  const int code = uv_queue_work(
      loop_, &job->request, [](uv_work_t* request) { static_cast<Job*>(request->data)->work(); },
      [](uv_work_t* request, int) {
        const std::unique_ptr<Job> owned(static_cast<Job*>(request->data));
        owned->done();
      });
  TF_CHECK_EQ(code, 0);
  (void)job.release();  // the request has it, until it is done
}

void UvPort::close() { uv_close(reinterpret_cast<uv_handle_t*>(&poll_), nullptr); }

}  // namespace tensorfold::service
