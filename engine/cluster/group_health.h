// GroupHealth: whether a group still works, and if not, why: the first failure counts.
// Shared by everything of one generation (threads, collective); safe from any thread. Deliberately
// without a way back: a group that broke is replaced.
#pragma once

#include <functional>
#include <mutex>

#include "engine/base/status.h"
#include "engine/cluster/stop_flag.h"

namespace tensorfold {

class GroupHealth {
 public:
  const StopFlag& broken() const { return broken_; }
  Status failure() const;
  void fail(Status why);  // the first one wins
  // This rank says goodbye: `why` becomes the failure with the next fail(), whatever that one's
  // reason is (a peer may hang up before we do). Waits go on until then.
  void leaving(Status why);
  // Called once, with the failure: by the thread that fails, or here when it has failed.
  void listen(std::function<void(const Status&)> listener);

 private:
  mutable std::mutex mutex_;
  Status failure_, leaving_;
  std::function<void(const Status&)> listener_;
  StopFlag broken_;
};

}  // namespace tensorfold
