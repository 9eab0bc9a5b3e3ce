// One connection: reads requests one after another, writes the replies, and keeps reading while a
// reply is made, because only so is a client that went away noticed.
//
// States: reading (idle, headers or body) -> replying -> reading ... -> lingering -> closed.
// An end of input is taken as "gone" in every state, as the servers that clients know do: a reply
// in progress is cancelled. Requests that arrive during a reply wait (up to kPipelinedBytesMax;
// past it they are dropped and the connection ends after the reply).
//
// Owner: the loop thread. Server owns the object; it dies in its close callback. An Exchange may
// outlive it and is then "gone".
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "daemon/http/limits.h"
#include "daemon/http/message.h"
#include "daemon/http/request_parser.h"
#include "engine/base/status.h"

namespace tensorfold::http {

class Server;
class ConnectionExchange;

class Connection {
 public:
  Connection(Server& server, bool unix_socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  uv_stream_t* stream() { return &handle_.stream; }
  Status start();                                     // after uv_accept
  void refuse(int status, std::string_view message);  // answer and close, without reading a request
  void check_deadlines(int64_t now_ms);
  void close();
  bool idle() const { return state_ == State::kReading && !parser_.started(); }
  const std::string& peer() const { return peer_; }
  const std::optional<PeerCredentials>& credentials() const { return credentials_; }

 private:
  friend class ConnectionExchange;
  enum class State : unsigned char { kReading, kReplying, kLingering, kClosed };
  struct Write {
    uv_write_t request;
    std::string bytes;
    Connection* connection;
  };

  static void on_alloc(uv_handle_t* handle, size_t size, uv_buf_t* buffer);
  static void on_read(uv_stream_t* stream, ssize_t count, const uv_buf_t* buffer);
  static void on_written(uv_write_t* request, int status);
  static void on_shutdown(uv_shutdown_t* request, int status);
  static void on_close(uv_handle_t* handle);

  void take_bytes(std::string_view bytes);
  void process();
  bool count_body();  // false: it does not fit beside those of the other connections
  void release_body();
  void headers_arrived();
  void request_arrived();
  void find_peer();
  int64_t now_ms() const;

  // From the exchange.
  void decorate(const Request& request, Response& response) const;
  void respond(const Response& response);
  void begin_stream(const Response& head);
  void write_stream(std::string_view bytes);
  void end_stream(std::string_view last);

  void send_error(int status, std::string_view message);
  void send(std::span<const std::string_view> parts);
  void send_chunk(std::string_view head, std::string_view bytes, std::string_view tail);
  void finish_reply();
  void linger();
  std::string head_text(const Response& response, bool stream, size_t body_bytes) const;

  Server& server_;
  union {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
  } handle_;
  uv_shutdown_t shutdown_;
  const bool unix_socket_;
  std::string peer_;
  std::optional<PeerCredentials> credentials_;
  RequestParser parser_;
  State state_ = State::kReading;
  std::string pending_;  // read and not yet parsed
  std::shared_ptr<ConnectionExchange> exchange_;
  bool processing_ = false;
  bool close_after_reply_ = false;
  bool head_only_ = false;   // HEAD: no body
  bool chunked_ = false;     // the stream being written uses chunks
  bool drop_input_ = false;  // too much was pipelined
  bool broken_ = false;      // a write failed
  size_t lingered_bytes_ = 0;
  size_t counted_body_bytes_ = 0;  // of the request that is read or not yet answered
  int64_t deadline_ms_ = 0;        // of the present wait; 0 is none
  int64_t body_deadline_ms_ = 0;
  size_t last_backlog_bytes_ = 0;
  int64_t backlog_since_ms_ = 0;  // since when nothing could be written
};

}  // namespace tensorfold::http
