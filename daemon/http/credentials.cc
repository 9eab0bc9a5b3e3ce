#include "daemon/http/credentials.h"

#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>

namespace tensorfold::http {
namespace {

constexpr socklen_t kPeerGroupsMax = 65536;  // the kernel's own bound (NGROUPS_MAX)

}  // namespace

bool PeerCredentials::in_group(int64_t gid) const {
  return std::find(groups.begin(), groups.end(), gid) != groups.end();
}

std::optional<PeerCredentials> unix_credentials(int fd) {
  ucred cred{};
  socklen_t size = sizeof cred;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0) return std::nullopt;
  PeerCredentials out;
  out.pid = cred.pid;
  out.uid = cred.uid;
  out.groups.push_back(cred.gid);
  // Asked with no room, the kernel says how much it needs.
  size = 0;
  getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, nullptr, &size);
  if (size > 0 && size <= kPeerGroupsMax * sizeof(gid_t)) {
    std::vector<gid_t> groups(size / sizeof(gid_t));
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0)
      out.groups.insert(out.groups.end(), groups.begin(), groups.end());
  }
  return out;
}

}  // namespace tensorfold::http
