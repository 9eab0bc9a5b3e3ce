// poll(2) with a deadline and two flags. Owner: the waiting thread; keeps nothing.
#include "engine/cluster/link_wait.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

namespace tensorfold {

int poll_ms(int64_t now_us, int64_t deadline_us) {
  constexpr int64_t kPollMsMax = 60'000;
  return static_cast<int>(std::clamp<int64_t>((deadline_us - now_us + 999) / 1000, 0, kPollMsMax));
}

Status wait_ready(int fd, short events, const LinkWait& wait) {
  for (;;) {
    if (wait.ended()) return {StatusCode::kCancelled, "stopped"};
    std::array<pollfd, 3> set{};
    nfds_t count = 0;
    if (fd >= 0) set[count++] = {fd, events, 0};
    if (wait.stop != nullptr) set[count++] = {wait.stop->fd(), POLLIN, 0};
    if (wait.broken != nullptr) set[count++] = {wait.broken->fd(), POLLIN, 0};
    const int ms = poll_ms(wait.clock->monotonic_us(), wait.deadline_us);
    const int ready = ::poll(set.data(), count, ms);
    if (ready < 0 && errno != EINTR) return io_error("poll", errno);
    if (wait.ended()) return {StatusCode::kCancelled, "stopped"};
    if (ready > 0 && fd >= 0 && set[0].revents != 0) return ok_status();
    if (wait.clock->monotonic_us() >= wait.deadline_us)
      return {StatusCode::kDeadline, "the time is over"};
  }
}

}  // namespace tensorfold
