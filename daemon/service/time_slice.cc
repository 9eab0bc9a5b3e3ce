#include "daemon/service/time_slice.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace tensorfold::service {
namespace {

// As the kernel has it (sched_setattr(2), its first version); the C library has no name for it.
struct SchedAttr {
  uint32_t size = sizeof(SchedAttr);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = kLoopSliceNs;  // of SCHED_OTHER: the slice
  uint64_t deadline_ns = 0, period_ns = 0;
};
static_assert(sizeof(SchedAttr) == 48);

}  // namespace

bool take_short_slice() {
  if (sched_getscheduler(0) != SCHED_OTHER) return false;  // a site chose another class
  errno = 0;
  SchedAttr attr;
  attr.nice = getpriority(PRIO_PROCESS, 0);
  return errno == 0 && syscall(SYS_sched_setattr, 0, &attr, 0U) == 0;
}

}  // namespace tensorfold::service
