#include "tests/daemon/loopback.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>

namespace tensorfold {

LoopbackServer::LoopbackServer(http::Limits limits, http::ServerHooks hooks) {
  uv_loop_init(&loop_);
  async_.data = this;
  uv_async_init(&loop_, &async_, [](uv_async_t* async) {
    auto& me = *static_cast<LoopbackServer*>(async->data);
    if (me.task_) {
      me.task_();
      me.task_ = nullptr;
      me.task_done_ = true;
    }
    if (!me.stop_) return;
    me.server_->close([&me] { uv_close(reinterpret_cast<uv_handle_t*>(&me.async_), nullptr); });
  });
  server_ =
      std::make_unique<http::Server>(&loop_, limits, std::move(hooks), system_clock(), null_log());
  const Status status = server_->listen_tcp("127.0.0.1:0");
  if (!status.ok()) throw std::runtime_error(status.message());
  port_ = server_->port();
  thread_ = std::thread([this] { uv_run(&loop_, UV_RUN_DEFAULT); });
}

void LoopbackServer::on_loop(std::function<void()> task) {
  task_done_ = false;
  task_ = std::move(task);
  uv_async_send(&async_);
  while (!task_done_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

http::ServerCounters LoopbackServer::counters() {
  http::ServerCounters out;
  on_loop([&] { out = server_->counters(); });
  return out;
}

size_t LoopbackServer::connections() {
  size_t out = 0;
  on_loop([&] { out = server_->connections(); });
  return out;
}

LoopbackServer::~LoopbackServer() {
  on_loop([this] { stop_ = true; });
  uv_async_send(&async_);
  thread_.join();
  server_.reset();
  uv_loop_close(&loop_);
}

Client::Client(int port, int receive_buffer_bytes)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_buffer_bytes > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error("connect failed");
  }
}

Client::~Client() {
  if (fd_ >= 0) close(fd_);
}

void Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return;  // the peer has gone: the test sees it when it reads
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void Client::shut_write() { shutdown(fd_, SHUT_WR); }

void Client::reset() {
  const linger now{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(fd_);
  fd_ = -1;
}

std::string Client::read_until(std::string_view text, int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!closed_ && received_.find(text) == std::string::npos) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd item{fd_, POLLIN, 0};
    if (left.count() <= 0 || poll(&item, 1, static_cast<int>(left.count())) <= 0) break;
    char buffer[65536];
    const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) {
      closed_ = true;
    } else {
      received_.append(buffer, static_cast<size_t>(n));
    }
  }
  return std::exchange(received_, {});
}

}  // namespace tensorfold
