// The first failure of a generation. Owner: see the header.
#include "engine/cluster/group_health.h"

#include "engine/base/check.h"

namespace tensorfold {

Status GroupHealth::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void GroupHealth::fail(Status why) {
  TF_CHECK(!why.ok());
  std::function<void(const Status&)> listener;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    if (!leaving_.ok()) why = leaving_;
    failure_ = why;
    listener = std::exchange(listener_, nullptr);
  }
  broken_.request();
  if (listener) listener(why);
}

void GroupHealth::leaving(Status why) {
  TF_CHECK(!why.ok());
  const std::lock_guard lock(mutex_);
  if (leaving_.ok()) leaving_ = std::move(why);
}

void GroupHealth::listen(std::function<void(const Status&)> listener) {
  Status failed;
  {
    const std::lock_guard lock(mutex_);
    failed = failure_;
    if (failed.ok()) listener_ = std::move(listener);
  }
  if (!failed.ok()) listener(failed);
}

}  // namespace tensorfold
