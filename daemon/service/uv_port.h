// LoopPort over libuv: one coalesced async handle, and the thread pool.
//
// Owner: the loop thread, but wake() may be called from any. It must outlive the engine, whose
// threads call wake(). The handle does not keep the loop alive.
#pragma once

#include <uv.h>

#include <functional>

#include "daemon/api/loop_port.h"

namespace tensorfold::service {

class UvPort final : public api::LoopPort {
 public:
  UvPort(uv_loop_t* loop, std::function<void()> on_wake);
  void wake() override { uv_async_send(&async_); }
  void run_on_worker(std::function<void()> work, std::function<void()> done) override;
  void close();  // after this and a turn of the loop the object may go

 private:
  uv_loop_t* loop_;
  std::function<void()> on_wake_;
  uv_async_t async_;
};

}  // namespace tensorfold::service
