// Who is at the other end of a Unix socket, as the kernel tells.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tensorfold::http {

struct PeerCredentials {
  int64_t pid = -1;
  int64_t uid = -1;
  std::vector<int64_t> groups;  // primary and supplementary

  bool in_group(int64_t gid) const;
};

// Of the connected socket `fd`, from SO_PEERCRED and SO_PEERGROUPS; nullopt when the kernel does
// not say.
std::optional<PeerCredentials> unix_credentials(int fd);

}  // namespace tensorfold::http
