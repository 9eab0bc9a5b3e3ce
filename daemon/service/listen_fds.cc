#include "daemon/service/listen_fds.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <vector>

namespace tensorfold::service {
namespace {

// "127.0.0.1:8888" or "[::1]:8888"; empty if it is no address of TCP.
std::string address_of(int fd) {
  sockaddr_storage where{};
  socklen_t size = sizeof where;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&where), &size) != 0) return "";
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (where.ss_family == AF_INET) {
    const auto& ip4 = reinterpret_cast<const sockaddr_in&>(where);
    inet_ntop(AF_INET, &ip4.sin_addr, text.data(), text.size());
    return std::string(text.data()) + ":" + std::to_string(ntohs(ip4.sin_port));
  }
  if (where.ss_family == AF_INET6) {
    const auto& ip6 = reinterpret_cast<const sockaddr_in6&>(where);
    inet_ntop(AF_INET6, &ip6.sin6_addr, text.data(), text.size());
    return "[" + std::string(text.data()) + "]:" + std::to_string(ntohs(ip6.sin6_port));
  }
  return "";
}

// The names that came with the descriptors; systemd gives one to each.
std::vector<std::string> taken_names(int* count) {
  char** names = nullptr;
  *count = sd_listen_fds_with_names(1, &names);
  std::vector<std::string> out;
  for (char** name = names; name != nullptr && *name != nullptr; ++name) {
    out.emplace_back(*name);
    std::free(*name);
  }
  std::free(static_cast<void*>(names));
  return out;
}

}  // namespace

Result<std::optional<PassedSocket>> take_passed_socket() {
  int count = 0;
  const std::vector<std::string> names = taken_names(&count);
  if (count < 0) return io_error("the sockets of the service manager", -count);
  if (count == 0) return std::optional<PassedSocket>();
  for (const std::string& name : names) {
    if (name == kListenName) continue;
    return invalid_argument("the service manager passes a socket named '" + name +
                            "'; the API's has FileDescriptorName=" + kListenName);
  }
  if (count != 1) {
    return invalid_argument("the service manager passes " + std::to_string(count) +
                            " sockets; one is taken: keep one ListenStream= in the socket unit");
  }
  PassedSocket out;
  out.fd = SD_LISTEN_FDS_START;
  out.address = address_of(out.fd);
  if (out.address.empty() || sd_is_socket(out.fd, AF_UNSPEC, SOCK_STREAM, 1) <= 0) {
    return invalid_argument(
        "the service manager's socket is no listening TCP socket: ListenStream= of the socket unit "
        "must be an address and a port");
  }
  return std::optional<PassedSocket>(std::move(out));
}

}  // namespace tensorfold::service
