#include "daemon/service/uv_port.h"

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
    : loop_(loop), on_wake_(std::move(on_wake)) {
  const int code = uv_async_init(
      loop, &async_, [](uv_async_t* async) { static_cast<UvPort*>(async->data)->on_wake_(); });
  TF_CHECK_EQ(code, 0);
  async_.data = this;
  uv_unref(reinterpret_cast<uv_handle_t*>(&async_));
}

void UvPort::run_on_worker(std::function<void()> work, std::function<void()> done) {
  auto* job = new Job{{}, std::move(work), std::move(done)};
  job->request.data = job;
  const int code = uv_queue_work(
      loop_, &job->request, [](uv_work_t* request) { static_cast<Job*>(request->data)->work(); },
      [](uv_work_t* request, int) {
        const std::unique_ptr<Job> owned(static_cast<Job*>(request->data));
        owned->done();
      });
  TF_CHECK_EQ(code, 0);
}

void UvPort::close() { uv_close(reinterpret_cast<uv_handle_t*>(&async_), nullptr); }

}  // namespace tensorfold::service
