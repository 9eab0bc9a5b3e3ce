// LinkAddress: a numeric address and port, and sockets made from it.
// Owner: values. Deliberately resolves no names: that could block.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "engine/base/status.h"
#include "engine/cluster/fd.h"
#include "engine/cluster/link_wait.h"

namespace tensorfold {

class LinkAddress {
 public:
  // kInvalidArgument, naming `field`, when `text` is a name, empty, or every interface (0.0.0.0).
  static Result<LinkAddress> parse(const std::string& field, const std::string& text, int port);

  int port() const;
  LinkAddress with_port(int port) const;
  std::string host() const;  // "192.0.2.1"
  std::string text() const;  // "192.0.2.1:29620", "[fe80::1%eth0]:29620"
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }

 private:
  friend Result<Fd> listen_on(const LinkAddress&, int*);
  friend Fd accept_from(int, LinkAddress*);
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

inline constexpr int kLinkBacklogMax = 512;  // connections that wait for the gate

// A listening, non-blocking socket on exactly this address; *port: what it got.
// kUnavailable when the address is not (yet) of this machine.
Result<Fd> listen_on(const LinkAddress& address, int* port);
// The next connection, non-blocking; not open when there is none.
Fd accept_from(int listener, LinkAddress* peer);
// A connection from `from` (its port is not used) to `to`, non-blocking once made.
Result<Fd> connect_to(const LinkAddress& from, const LinkAddress& to, const LinkWait& wait);

// No delay for small frames; a peer whose host is gone is given up by the kernel after
// `unacknowledged_ms`.
void set_link_options(int fd, int64_t unacknowledged_ms);

}  // namespace tensorfold
