#include "daemon/preflight/probe_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "engine/base/clock.h"

namespace tensorfold::preflight {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr int64_t kLookMs = 100;  // between two questions whether to give up

Result<sockaddr_in> address_of(const std::string& text, int64_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, text.c_str(), &out.sin_addr) != 1) {
    return invalid_argument("'" + text + "' is no IPv4 address");
  }
  return out;
}

Status deadline(const char* what) {
  return Status(StatusCode::kDeadline, std::string(what) + ": no answer in time");
}

}  // namespace

int64_t probe_now_ms() { return system_clock().monotonic_us() / 1000; }

ProbeSocket::ProbeSocket(ProbeSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

ProbeSocket& ProbeSocket::operator=(ProbeSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

ProbeSocket::~ProbeSocket() {
  if (fd_ >= 0) ::close(fd_);
}

Result<ProbeSocket> ProbeSocket::listen_at(const std::string& address) {
  TF_ASSIGN_OR_RETURN(const sockaddr_in name, address_of(address, 0));
  ProbeSocket out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (out.fd_ < 0 || ::bind(out.fd_, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 ||
      ::listen(out.fd_, 1) != 0) {
    return io_error("listening at " + address, errno);
  }
  return out;
}

Result<ProbeSocket> ProbeSocket::connect_to(const std::string& from, const std::string& to,
                                            int64_t port, int64_t until_ms) {
  TF_ASSIGN_OR_RETURN(const sockaddr_in near, address_of(from, 0));
  TF_ASSIGN_OR_RETURN(const sockaddr_in far, address_of(to, port));
  const std::string what = "connecting from " + from + " to " + to + ":" + std::to_string(port);
  ProbeSocket out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (out.fd_ < 0 || ::bind(out.fd_, reinterpret_cast<const sockaddr*>(&near), sizeof near) != 0) {
    return io_error(what, errno);
  }
  if (::connect(out.fd_, reinterpret_cast<const sockaddr*>(&far), sizeof far) == 0) return out;
  if (errno != EINPROGRESS) return io_error(what, errno);
  if (!out.wait(POLLOUT, until_ms).ok()) return deadline(what.c_str());
  int code = 0;
  socklen_t size = sizeof code;
  ::getsockopt(out.fd_, SOL_SOCKET, SO_ERROR, &code, &size);
  if (code != 0) return io_error(what, code);
  return out;
}

Result<ProbeSocket> ProbeSocket::accept_one(int64_t until_ms,
                                            const std::function<bool()>& given_up) const {
  for (;;) {
    const int64_t now = probe_now_ms();
    if (now >= until_ms) return deadline("waiting for a connection");
    const bool last_look = given_up && given_up();
    const Status came = wait(POLLIN, last_look ? now : std::min(until_ms, now + kLookMs));
    if (came.ok()) {
      const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) return ProbeSocket(fd);
    } else if (last_look) {
      return unavailable("nobody connects");
    }
  }
}

int64_t ProbeSocket::port() const {
  sockaddr_in name{};
  socklen_t size = sizeof name;
  if (::getsockname(fd_, reinterpret_cast<sockaddr*>(&name), &size) != 0) return 0;
  return ntohs(name.sin_port);
}

Status ProbeSocket::wait(short events, int64_t until_ms) const {
  for (;;) {
    const int64_t left_ms = std::max<int64_t>(0, until_ms - probe_now_ms());
    pollfd item{fd_, events, 0};
    const int ready = ::poll(&item, 1, static_cast<int>(std::min<int64_t>(left_ms, 60'000)));
    if (ready > 0) return ok_status();
    if (ready < 0 && errno != EINTR) return io_error("poll", errno);
    if (left_ms == 0) return deadline("the transfer");
  }
}

Status ProbeSocket::send_some(std::string_view text, int64_t until_ms, size_t& sent) const {
  TF_RETURN_IF_ERROR(wait(POLLOUT, until_ms));
  const ssize_t count = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
  if (count < 0 && errno != EAGAIN && errno != EINTR) return io_error("the transfer", errno);
  sent = count > 0 ? static_cast<size_t>(count) : 0;
  return ok_status();
}

Status ProbeSocket::send_text(std::string_view text, int64_t until_ms) const {
  while (!text.empty()) {
    size_t sent = 0;
    TF_RETURN_IF_ERROR(send_some(text, until_ms, sent));
    text.remove_prefix(sent);
  }
  return ok_status();
}

Result<std::string> ProbeSocket::receive_text(size_t bytes, int64_t until_ms) const {
  std::string out;
  while (out.size() < bytes) {
    char piece[256];
    TF_RETURN_IF_ERROR(wait(POLLIN, until_ms));
    const ssize_t count = ::recv(fd_, piece, std::min(sizeof piece, bytes - out.size()), 0);
    if (count == 0) return unavailable("the other side has gone");
    if (count < 0 && errno != EAGAIN && errno != EINTR) return io_error("the transfer", errno);
    if (count > 0) out.append(piece, static_cast<size_t>(count));
  }
  return out;
}

Status ProbeSocket::send_filler(int64_t bytes, int64_t until_ms) const {
  const std::string piece(kPieceBytes, 'x');
  while (bytes > 0) {
    const auto part = std::string_view(piece).substr(0, static_cast<size_t>(bytes));
    size_t sent = 0;
    TF_RETURN_IF_ERROR(send_some(part, until_ms, sent));
    bytes -= static_cast<int64_t>(sent);
  }
  return ok_status();
}

Status ProbeSocket::receive_filler(int64_t bytes, int64_t until_ms) const {
  std::vector<char> piece(kPieceBytes);
  while (bytes > 0) {
    TF_RETURN_IF_ERROR(wait(POLLIN, until_ms));
    const size_t most = std::min(piece.size(), static_cast<size_t>(bytes));
    const ssize_t count = ::recv(fd_, piece.data(), most, 0);
    if (count == 0) return unavailable("the other side has gone");
    if (count < 0 && errno != EAGAIN && errno != EINTR) return io_error("the transfer", errno);
    if (count > 0) bytes -= count;
  }
  return ok_status();
}

}  // namespace tensorfold::preflight
