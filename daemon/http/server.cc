#include "daemon/http/server.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <charconv>
#include <utility>

#include "daemon/http/connection.h"
#include "engine/base/check.h"

namespace tensorfold::http {

Server::Server(uv_loop_t* loop, Limits limits, ServerHooks hooks, const Clock& clock, LogSink& log)
    : loop_(loop),
      limits_(limits),
      hooks_(std::move(hooks)),
      clock_(clock),
      log_(log),
      read_buffer_(new char[kReadBufferBytes]) {
  TF_CHECK(hooks_.handle != nullptr);
}

Server::~Server() { TF_CHECK_EQ(open_handles_, 0); }

namespace {

// "HOST:PORT" or "[HOST]:PORT" with a numeric host.
bool parse_address(const std::string& text, sockaddr_storage* out) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return false;
  std::string host = text.substr(0, colon);
  int port = -1;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end || port < 0 || port > 65535) return false;
  if (host == "localhost") host = "127.0.0.1";
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    return uv_ip6_addr(host.c_str(), port, reinterpret_cast<sockaddr_in6*>(out)) == 0;
  }
  return uv_ip4_addr(host.c_str(), port, reinterpret_cast<sockaddr_in*>(out)) == 0;
}

int port_of(const uv_tcp_t& listener) {
  sockaddr_storage where{};
  int size = sizeof where;
  uv_tcp_getsockname(&listener, reinterpret_cast<sockaddr*>(&where), &size);
  return ntohs(where.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&where)->sin_port
                                          : reinterpret_cast<sockaddr_in6*>(&where)->sin6_port);
}

}  // namespace

Status Server::listen_tcp(const std::string& address) {
  sockaddr_storage where{};
  if (!parse_address(address, &where)) {
    return invalid_argument("'" + address + "' is not an address of the form 127.0.0.1:8888");
  }
  uv_tcp_init(loop_, &listener_.tcp);
  listener_.handle.data = this;
  ++open_handles_;
  listening_ = true;
  int code = uv_tcp_bind(&listener_.tcp, reinterpret_cast<const sockaddr*>(&where), 0);
  if (code == 0) code = uv_listen(&listener_.stream, kListenBacklogConnections, on_connection);
  if (code != 0) {
    stop_accepting();
    const Status error = io_error("listening on " + address, -code);
    return Status(error.code(), error.message(), {}, code == UV_EADDRINUSE ? "in_use" : "");
  }
  port_ = port_of(listener_.tcp);
  return start_sweep();
}

Status Server::listen_fd(int fd, bool unix_socket) {
  unix_socket_ = unix_socket;
  int code = 0;
  if (unix_socket) {
    uv_pipe_init(loop_, &listener_.pipe, 0);
    code = uv_pipe_open(&listener_.pipe, fd);
  } else {
    uv_tcp_init(loop_, &listener_.tcp);
    code = uv_tcp_open(&listener_.tcp, fd);
  }
  listener_.handle.data = this;
  ++open_handles_;
  listening_ = true;
  if (code == 0) code = uv_listen(&listener_.stream, kListenBacklogConnections, on_connection);
  if (code != 0) {
    stop_accepting();
    return io_error("listening on descriptor " + std::to_string(fd), -code);
  }
  if (!unix_socket) port_ = port_of(listener_.tcp);
  return start_sweep();
}

Status Server::start_sweep() {
  uv_timer_init(loop_, &sweep_);
  sweep_.data = this;
  ++open_handles_;
  sweeping_ = true;
  const auto period = static_cast<uint64_t>(limits_.sweep_ms);
  uv_timer_start(&sweep_, on_sweep, period, period);
  return ok_status();
}

void Server::on_connection(uv_stream_t* listener, int status) {
  auto& me = *static_cast<Server*>(listener->data);
  if (status == 0 && !me.closing_) me.accept();
}

void Server::accept() {
  auto owned = std::make_unique<Connection>(*this, unix_socket_);
  Connection& connection = *owned;
  const bool room = connections_.size() < limits_.connections;
  connections_.emplace(&connection, std::move(owned));
  ++counters_.connections_total;
  if (uv_accept(&listener_.stream, connection.stream()) != 0) {
    connection.close();
    return;
  }
  const bool flood = connections_.size() > limits_.connections + kRefusedConnectionsMax;
  if (flood || !connection.start().ok()) {
    ++counters_.connections_refused_total;
    connection.close();
    return;
  }
  if (!room) {
    ++counters_.connections_refused_total;
    connection.refuse(503, "too many connections");
  }
}

void Server::on_sweep(uv_timer_t* timer) {
  auto& me = *static_cast<Server*>(timer->data);
  const int64_t now_ms = me.clock_.monotonic_us() / 1000;
  for (auto& [key, connection] : me.connections_) connection->check_deadlines(now_ms);
}

void Server::remove(Connection* connection) {
  connections_.erase(connection);
  maybe_closed();
}

size_t Server::unsent_bytes() const {
  size_t bytes = 0;
  for (const auto& [key, connection] : connections_) {
    bytes += uv_stream_get_write_queue_size(connection->stream());
  }
  return bytes;
}

void Server::stop_accepting() {
  if (!listening_) return;
  listening_ = false;
  uv_close(&listener_.handle, [](uv_handle_t* handle) {
    auto& me = *static_cast<Server*>(handle->data);
    --me.open_handles_;
    me.maybe_closed();
  });
}

void Server::close(std::function<void()> on_closed) {
  on_closed_ = std::move(on_closed);
  closing_ = true;
  stop_accepting();
  if (sweeping_) {
    sweeping_ = false;
    uv_close(reinterpret_cast<uv_handle_t*>(&sweep_), [](uv_handle_t* handle) {
      auto& me = *static_cast<Server*>(handle->data);
      --me.open_handles_;
      me.maybe_closed();
    });
  }
  for (auto& [key, connection] : connections_) connection->close();
  if (open_handles_ == 0 && connections_.empty()) maybe_closed();
}

void Server::maybe_closed() {
  if (!closing_ || open_handles_ > 0 || !connections_.empty()) return;
  if (auto callback = std::exchange(on_closed_, nullptr)) callback();
}

}  // namespace tensorfold::http
