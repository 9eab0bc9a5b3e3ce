// An HTTP server over one listening socket, TCP or Unix: accepts, bounds, times out, hands whole
// requests to one handler. It knows no routes.
//
// Owner: the loop thread; every method is called there. Close it with close() and keep the object
// until on_closed has been called (libuv finishes its handles on the loop).
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "daemon/http/limits.h"
#include "daemon/http/message.h"
#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/base/status.h"

namespace tensorfold::http {

class Connection;

struct ServerHooks {
  // A whole request. Must answer through the exchange, now or later.
  std::function<void(std::shared_ptr<Exchange>)> handle;
  // Called when the headers are in, before the body is read: a refusal (404, 401, 415, ...) or
  // nothing. May be empty.
  std::function<std::optional<Response>(const Request&)> precheck;
  // Adds headers to a reply to that request. May be empty.
  std::function<void(const Request&, Response&)> decorate;
  // The body of replies that the server itself makes (400, 408, 413, 431, 503), with what is known
  // of the request. May be empty.
  std::function<std::string(const Request&, int status, std::string_view message)> error_body;
};

struct ServerCounters {
  uint64_t connections_total = 0;
  uint64_t connections_refused_total = 0;
  uint64_t requests_total = 0;
  uint64_t bad_requests_total = 0;    // answered by the server itself
  uint64_t bodies_refused_total = 0;  // bodies that did not fit beside the others
  uint64_t timeouts_total = 0;
  uint64_t slow_readers_total = 0;  // closed because they did not read
};

class Server {
 public:
  Server(uv_loop_t* loop, Limits limits, ServerHooks hooks, const Clock& clock, LogSink& log);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // "127.0.0.1:8888", "[::1]:8888"; port 0 takes a free one. The status names the address; its
  // reason is "in_use" when another process has it.
  Status listen_tcp(const std::string& address);
  // Takes a listening socket of the given family (AF_INET, AF_INET6 or AF_UNIX) over.
  Status listen_fd(int fd, bool unix_socket);

  int port() const { return port_; }  // 0 for a Unix socket
  const ServerCounters& counters() const { return counters_; }
  size_t connections() const { return connections_.size(); }
  size_t exchanges() const { return exchanges_; }  // requests being answered now

  size_t unsent_bytes() const;                       // written and not yet taken by the sockets
  size_t body_bytes() const { return body_bytes_; }  // read of requests not yet answered

  void stop_accepting();
  // Stops accepting and drops every connection; idle ones at once. `on_closed` runs on the loop
  // when nothing is left.
  void close(std::function<void()> on_closed);

 private:
  friend class Connection;

  static void on_connection(uv_stream_t* listener, int status);
  static void on_sweep(uv_timer_t* timer);
  void accept();
  Status start_sweep();
  void remove(Connection* connection);  // from its close callback
  void maybe_closed();

  uv_loop_t* loop_;
  const Limits limits_;
  const ServerHooks hooks_;
  const Clock& clock_;
  LogSink& log_;
  ServerCounters counters_;
  union {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
  } listener_{};
  uv_timer_t sweep_;
  bool unix_socket_ = false;
  bool listening_ = false;
  bool sweeping_ = false;
  bool closing_ = false;
  int open_handles_ = 0;
  int port_ = 0;
  size_t exchanges_ = 0;
  size_t body_bytes_ = 0;
  std::unordered_map<Connection*, std::unique_ptr<Connection>> connections_;
  std::unique_ptr<char[]> read_buffer_;  // shared: libuv reads and reports without a turn between
  std::function<void()> on_closed_;
};

}  // namespace tensorfold::http
