// The barrier. Owner: see the header.
#include "daemon/log/journal_barrier.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

namespace tensorfold::log {
namespace {

constexpr std::chrono::milliseconds kNap{1};

bool read_by_journal(int fd, int64_t limit_ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  bool sent = false;
  for (;;) {
    if (!sent) sent = send(fd, "", 0, MSG_NOSIGNAL | MSG_DONTWAIT) == 0;
    int waiting = 0;
    if (sent && (ioctl(fd, SIOCOUTQ, &waiting) != 0 || waiting == 0)) return waiting == 0;
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace

bool wait_for_journal(const std::string& socket_path, int64_t limit_ms) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  const bool there = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const bool read = there && read_by_journal(fd, limit_ms);
  close(fd);
  return read;
}

}  // namespace tensorfold::log
