// LoopPort over libuv: one coalesced wake-up, and libuv's thread pool.
//
// Owner: the loop thread, but wake() may be called from any. It must outlive the engine, whose
// threads call wake(). The handle does not keep the loop alive.
// wake() is an eventfd of its own and not a uv_async_t: libuv's loop spins while a thread stands
// inside uv_async_send, so an engine thread that is held there would hold the loop, and with it
// the drain, the watchdog and every other client.
#pragma once

#include <uv.h>

#include <atomic>
#include <functional>

#include "daemon/api/loop_port.h"

namespace tensorfold::service {

class UvPort final : public api::LoopPort {
 public:
  UvPort(uv_loop_t* loop, std::function<void()> on_wake);
  ~UvPort() override;
  // A caller that stands still anywhere in here delays at most what it and others wanted to tell,
  // until the loop looks by itself.
  void wake() override;
  void run_on_worker(std::function<void()> work, std::function<void()> done) override;
  void close();  // after this and a turn of the loop the object may go

 private:
  void on_readable();

  uv_loop_t* loop_;
  std::function<void()> on_wake_;
  int fd_;                         // the eventfd
  std::atomic<bool> told_{false};  // written to fd_, or about to be, and not taken yet
  uv_poll_t poll_;
};

}  // namespace tensorfold::service
