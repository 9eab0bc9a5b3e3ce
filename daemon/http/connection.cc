// Reading: bytes to requests, deadlines, and the end of a connection. Writing is in reply.cc.
#include "daemon/http/connection.h"

#include <sys/socket.h>

#include <algorithm>

#include "daemon/http/credentials.h"
#include "daemon/http/exchange.h"
#include "daemon/http/server.h"

namespace tensorfold::http {

Connection::Connection(Server& server, bool unix_socket)
    : server_(server), unix_socket_(unix_socket), parser_(server.limits_) {
  if (unix_socket) {
    uv_pipe_init(server.loop_, &handle_.pipe, 0);
  } else {
    uv_tcp_init(server.loop_, &handle_.tcp);
  }
  handle_.handle.data = this;
}

Connection::~Connection() = default;

int64_t Connection::now_ms() const { return server_.clock_.monotonic_us() / 1000; }

void Connection::find_peer() {
  if (unix_socket_) {
    uv_os_fd_t fd = -1;
    uv_fileno(&handle_.handle, &fd);
    credentials_ = unix_credentials(fd);
    if (credentials_) {
      peer_ = "unix:pid=" + std::to_string(credentials_->pid) +
              ",uid=" + std::to_string(credentials_->uid);
    }
    return;
  }
  sockaddr_storage address{};
  int size = sizeof address;
  char text[64] = "?";
  if (uv_tcp_getpeername(&handle_.tcp, reinterpret_cast<sockaddr*>(&address), &size) != 0) return;
  int port = 0;
  if (address.ss_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(&address);
    uv_ip4_name(in, text, sizeof text);
    port = ntohs(in->sin_port);
    peer_ = std::string(text) + ":" + std::to_string(port);
  } else {
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&address);
    uv_ip6_name(in6, text, sizeof text);
    port = ntohs(in6->sin6_port);
    peer_ = "[" + std::string(text) + "]:" + std::to_string(port);
  }
}

Status Connection::start() {
  find_peer();
  if (!unix_socket_) {
    uv_tcp_nodelay(&handle_.tcp, 1);
    uv_tcp_keepalive(&handle_.tcp, 1, kTcpKeepaliveSeconds);  // a peer that died says nothing
  }
  deadline_ms_ = now_ms() + server_.limits_.idle_ms;
  const int code = uv_read_start(stream(), on_alloc, on_read);
  if (code != 0) return io_error("reading from a connection", -code);
  return ok_status();
}

void Connection::refuse(int status, std::string_view message) {
  close_after_reply_ = true;
  send_error(status, message);
}

void Connection::on_alloc(uv_handle_t* handle, size_t, uv_buf_t* buffer) {
  auto& me = *static_cast<Connection*>(handle->data);
  *buffer = uv_buf_init(me.server_.read_buffer_.get(), kReadBufferBytes);
}

void Connection::on_read(uv_stream_t* stream, ssize_t count, const uv_buf_t* buffer) {
  auto& me = *static_cast<Connection*>(stream->data);
  if (count == 0 || me.state_ == State::kClosed) return;
  if (count < 0) {
    me.close();
    return;
  }
  me.take_bytes({buffer->base, static_cast<size_t>(count)});
}

void Connection::take_bytes(std::string_view bytes) {
  if (state_ == State::kLingering) {
    lingered_bytes_ += bytes.size();
    if (lingered_bytes_ > kLingerBytesMax) close();
    return;
  }
  if (state_ == State::kReplying) {
    if (drop_input_ || pending_.size() + bytes.size() > kPipelinedBytesMax) {
      drop_input_ = close_after_reply_ = true;
      pending_.clear();
      pending_.shrink_to_fit();
      return;
    }
    pending_.append(bytes);
    return;
  }
  pending_.append(bytes);
  process();
}

// Parses what has been read, one request after another, until a reply has to be awaited.
void Connection::process() {
  if (processing_) return;  // a handler answered at once: the loop below goes on
  processing_ = true;
  size_t used = 0;
  while (state_ == State::kReading && (used < pending_.size() || parser_.ready())) {
    const bool fresh = !parser_.started();
    const auto step = parser_.feed(std::string_view(pending_).substr(used));
    used += step.consumed;
    if (fresh && parser_.started()) deadline_ms_ = now_ms() + server_.limits_.header_ms;
    if (!count_body()) {
      ++server_.counters_.bodies_refused_total;
      close_after_reply_ = true;
      send_error(503, "too many request bodies are being read or wait for an answer");
    } else if (step.event == RequestParser::Event::kError) {
      ++server_.counters_.bad_requests_total;
      close_after_reply_ = true;
      send_error(parser_.error_status(), parser_.error_message());
    } else if (step.event == RequestParser::Event::kHeaders) {
      headers_arrived();
    } else if (step.event == RequestParser::Event::kComplete) {
      request_arrived();
    } else if (parser_.headers_complete()) {
      deadline_ms_ = std::min(body_deadline_ms_, now_ms() + server_.limits_.body_gap_ms);
    }
  }
  pending_.erase(0, used);
  processing_ = false;
}

bool Connection::count_body() {
  const size_t bytes = parser_.request().body.size();
  server_.body_bytes_ += bytes - counted_body_bytes_;
  counted_body_bytes_ = bytes;
  return bytes == 0 || server_.body_bytes_ <= server_.limits_.bodies_bytes;
}

void Connection::release_body() {
  server_.body_bytes_ -= counted_body_bytes_;
  counted_body_bytes_ = 0;
}

void Connection::headers_arrived() {
  body_deadline_ms_ = now_ms() + server_.limits_.body_ms;
  deadline_ms_ = std::min(body_deadline_ms_, now_ms() + server_.limits_.body_gap_ms);
  head_only_ = parser_.request().method == Method::kHead;
  if (server_.hooks_.precheck) {
    if (auto refusal = server_.hooks_.precheck(parser_.request())) {
      // A long body is not waited for; after a short one or none the connection can go on.
      if (parser_.has_long_body() || (parser_.has_body() && parser_.expects_continue())) {
        refusal->close = true;
        decorate(parser_.request(), *refusal);
        respond(*refusal);
        return;
      }
    }
  }
  if (parser_.has_body() && parser_.expects_continue()) {
    send_chunk("HTTP/1.1 100 Continue\r\n\r\n", "", "");
  }
}

void Connection::request_arrived() {
  ++server_.counters_.requests_total;
  deadline_ms_ = 0;
  state_ = State::kReplying;
  Request request = std::move(parser_.request());
  close_after_reply_ = close_after_reply_ || !request.keep_alive;
  exchange_ = std::make_shared<ConnectionExchange>(*this, std::move(request));
  ++server_.exchanges_;
  auto exchange = exchange_;  // keeps it alive while the handler runs
  if (server_.hooks_.precheck) {
    if (auto refusal = server_.hooks_.precheck(exchange->request())) {
      exchange->respond(std::move(*refusal));
      return;
    }
  }
  server_.hooks_.handle(exchange);
}

void Connection::check_deadlines(int64_t now) {
  if (state_ == State::kClosed) return;
  const size_t backlog = uv_stream_get_write_queue_size(stream());
  if (backlog == 0 || backlog != last_backlog_bytes_) {
    last_backlog_bytes_ = backlog;
    backlog_since_ms_ = now;
  } else if (now - backlog_since_ms_ > server_.limits_.write_stall_ms) {
    ++server_.counters_.slow_readers_total;
    close();
    return;
  }
  if (deadline_ms_ == 0 || now < deadline_ms_) return;
  deadline_ms_ = 0;
  if (state_ == State::kReading && parser_.started()) {
    ++server_.counters_.timeouts_total;
    close_after_reply_ = true;
    send_error(408, parser_.headers_complete() ? "the request body did not arrive in time"
                                               : "the request headers did not arrive in time");
    return;
  }
  close();
}

// Also the way out for a peer that has gone: its reply, if one is being made, is lost.
void Connection::close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  release_body();
  uv_close(&handle_.handle, on_close);
}

void Connection::on_close(uv_handle_t* handle) {
  auto& me = *static_cast<Connection*>(handle->data);
  if (auto exchange = std::move(me.exchange_)) {
    --me.server_.exchanges_;
    exchange->lose();
  }
  me.server_.remove(&me);  // deletes `me`
}

}  // namespace tensorfold::http
