// Sockets of the link. Owner: the Fd that is returned; no state here.
#include "engine/cluster/link_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

namespace tensorfold {
namespace {

bool any_interface(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr == htonl(INADDR_ANY);
  const auto& six = reinterpret_cast<const sockaddr_in6&>(storage);
  return std::memcmp(&six.sin6_addr, &in6addr_any, sizeof in6addr_any) == 0;
}

void set_int(int fd, int level, int name, int value) {
  // Tuning: a kernel without it still works, only slower to notice.
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

}  // namespace

Result<LinkAddress> LinkAddress::parse(const std::string& field, const std::string& text,
                                       int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (text.empty() || ::getaddrinfo(text.c_str(), service.c_str(), &hints, &found) != 0) {
    return invalid_argument(field + ": '" + text +
                            "' is not a numeric address (192.0.2.1, fe80::1%interface)");
  }
  LinkAddress address;
  std::memcpy(&address.storage_, found->ai_addr, found->ai_addrlen);
  address.length_ = found->ai_addrlen;
  ::freeaddrinfo(found);
  if (any_interface(address.storage_)) {
    return invalid_argument(field + ": '" + text +
                            "' means every interface; the link uses one, name its address");
  }
  return address;
}

int LinkAddress::port() const {
  if (storage_.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(storage_).sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port);
}

LinkAddress LinkAddress::with_port(int port) const {
  LinkAddress other = *this;
  const uint16_t value = htons(static_cast<uint16_t>(port));
  if (storage_.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(other.storage_).sin_port = value;
  } else {
    reinterpret_cast<sockaddr_in6&>(other.storage_).sin6_port = value;
  }
  return other;
}

std::string LinkAddress::host() const {
  char name[NI_MAXHOST] = "";
  if (::getnameinfo(raw(), length_, name, sizeof name, nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return name;
}

std::string LinkAddress::text() const {
  const std::string name = host();
  const bool six = storage_.ss_family == AF_INET6;
  return (six ? "[" + name + "]" : name) + ":" + std::to_string(port());
}

Result<Fd> listen_on(const LinkAddress& address, int* port) {
  Fd fd(::socket(address.raw()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.open()) return io_error("socket", errno);
  set_int(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(fd.get(), address.raw(), address.length()) != 0) {
    if (errno == EADDRNOTAVAIL)
      return unavailable(address.host() + " is not an address of this machine (yet)");
    return io_error("listening on " + address.text(), errno);
  }
  if (::listen(fd.get(), kLinkBacklogMax) != 0)
    return io_error("listening on " + address.text(), errno);
  LinkAddress bound;
  bound.length_ = sizeof bound.storage_;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage_), &bound.length_) != 0)
    return io_error("getsockname", errno);
  *port = bound.port();
  return fd;
}

Fd accept_from(int listener, LinkAddress* peer) {
  peer->length_ = sizeof peer->storage_;
  return Fd(::accept4(listener, reinterpret_cast<sockaddr*>(&peer->storage_), &peer->length_,
                      SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Result<Fd> connect_to(const LinkAddress& from, const LinkAddress& to, const LinkWait& wait) {
  Fd fd(::socket(to.raw()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.open()) return io_error("socket", errno);
  const LinkAddress source = from.with_port(0);
  if (::bind(fd.get(), source.raw(), source.length()) != 0)
    return io_error("connecting from " + from.host(), errno);
  if (::connect(fd.get(), to.raw(), to.length()) == 0) return fd;
  if (errno != EINPROGRESS) return io_error("connecting to " + to.text(), errno);
  const Status waited = wait_ready(fd.get(), POLLOUT, wait);
  if (!waited.ok()) return waited.with_context("connecting to " + to.text());
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error != 0) return io_error("connecting to " + to.text(), error);
  return fd;
}

void set_link_options(int fd, int64_t unacknowledged_ms) {
  constexpr int64_t kIntMax = std::numeric_limits<int>::max();
  set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
          static_cast<int>(std::min(unacknowledged_ms, kIntMax)));
  // An idle connection is probed, so that a reboot or a cut cable ends it without traffic of ours.
  set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

}  // namespace tensorfold
