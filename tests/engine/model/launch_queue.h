// What the stand-in device (graph_host_device.cc) gives as its native queue: a library of exchanges
// queues its work there, to be run or recorded like an operation.
#pragma once

#include <functional>

namespace tensorfold::test {

class LaunchQueue {
 public:
  virtual ~LaunchQueue() = default;
  virtual void launch(std::function<void()> work) = 0;
};

}  // namespace tensorfold::test
