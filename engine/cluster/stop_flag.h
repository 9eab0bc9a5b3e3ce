// StopFlag: "end now", from one thread to others that wait on sockets. Setting it makes `fd()`
// readable for ever, so every poll of the link has it in its set and nothing waits past it.
//
// Owner: whoever may end the work (the daemon's loop for forming, a Group for itself). Must outlive
// those who wait on it. request() is safe from any thread and from a signal handler.
#pragma once

#include <atomic>

namespace tensorfold {

class StopFlag {
 public:
  StopFlag();
  ~StopFlag();
  StopFlag(const StopFlag&) = delete;
  StopFlag& operator=(const StopFlag&) = delete;

  void request();
  bool requested() const { return requested_.load(std::memory_order_acquire); }
  int fd() const { return fd_; }  // readable once requested

 private:
  std::atomic<bool> requested_{false};
  int fd_ = -1;
};

}  // namespace tensorfold
