// An HTTP server on a loop thread of its own, and a blocking client socket: what the server's tests
// talk through.
#pragma once

#include <uv.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "daemon/http/server.h"

namespace tensorfold {

// Runs `server` until the object goes. Handlers run on its thread.
class LoopbackServer {
 public:
  LoopbackServer(http::Limits limits, http::ServerHooks hooks);
  ~LoopbackServer();
  int port() const { return port_; }
  http::ServerCounters counters();  // asked on the loop's thread
  size_t connections();
  http::Server& server() { return *server_; }  // on the loop's thread only
  void on_loop(std::function<void()> task);    // runs it there and waits

 private:
  void run();

  uv_loop_t loop_;
  uv_async_t async_;
  std::unique_ptr<http::Server> server_;
  std::function<void()> task_;
  std::atomic<bool> task_done_{false};
  bool stop_ = false;
  int port_ = 0;
  std::thread thread_;
};

class Client {
 public:
  explicit Client(int port, int receive_buffer_bytes = 0);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(std::string_view bytes);
  void shut_write();
  void reset();  // closes with a TCP reset
  // Reads until `text` is in what has come, the peer closes, or the time is up; gives all of it.
  std::string read_until(std::string_view text, int timeout_ms = 5000);
  std::string read_all(int timeout_ms = 5000) { return read_until("\x01never", timeout_ms); }
  bool closed() const { return closed_; }  // the peer ended the connection

 private:
  int fd_;
  bool closed_ = false;
  std::string received_;
};

}  // namespace tensorfold
