// What daemon/api needs of the event loop, without libuv: a wake-up from any thread and a worker.
#pragma once

#include <functional>

namespace tensorfold::api {

class LoopPort {
 public:
  virtual ~LoopPort() = default;
  // Any thread: the loop calls its on-wake function soon; several calls may become one.
  virtual void wake() = 0;
  // Loop thread: runs `work` on a pool thread, then `done` on the loop.
  virtual void run_on_worker(std::function<void()> work, std::function<void()> done) = 0;
};

}  // namespace tensorfold::api
