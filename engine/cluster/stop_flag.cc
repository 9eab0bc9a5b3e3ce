// A flag and an eventfd that is never read, so it stays readable.
// Owner: see the header. Deliberately has no reset: a new piece of work gets a new flag.
#include "engine/cluster/stop_flag.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "engine/base/check.h"

namespace tensorfold {

StopFlag::StopFlag() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TF_CHECK_MSG(fd_ >= 0, "no descriptor left for an eventfd");
}

StopFlag::~StopFlag() { ::close(fd_); }

void StopFlag::request() {
  requested_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  // Fails only when the counter is full: then it is readable already.
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);
}

}  // namespace tensorfold
