// LinkWait: how long something on a socket may take and what ends it early. Every wait of the link
// goes through here, so none can be without a bound.
// Owner: the waiting thread's stack. Deliberately knows one socket at a time; loops over many build
// their own poll set with the same rules.
#pragma once

#include <array>
#include <cstdint>

#include "engine/base/clock.h"
#include "engine/base/status.h"
#include "engine/cluster/stop_flag.h"

namespace tensorfold {

struct LinkWait {
  const Clock* clock = nullptr;
  int64_t deadline_us = 0;  // of `clock`
  const StopFlag* stop = nullptr;
  const StopFlag* broken = nullptr;

  bool ended() const {
    return (stop != nullptr && stop->requested()) || (broken != nullptr && broken->requested());
  }
  LinkWait until(int64_t other_us) const {  // the same with another deadline
    LinkWait wait = *this;
    wait.deadline_us = other_us;
    return wait;
  }
};

// Milliseconds for poll(2): rounded up, so that a wait is never busy; 0 when past.
int poll_ms(int64_t now_us, int64_t deadline_us);

// ok when `events` (or an error, which the next call on the socket tells) is there; kCancelled when
// a flag is up; kDeadline. fd -1: only sleeps.
Status wait_ready(int fd, short events, const LinkWait& wait);

}  // namespace tensorfold
