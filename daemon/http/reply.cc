// Connection's writing half: heads, whole replies, streams, backlog, and the polite last close.
#include <cstdio>
#include <ctime>
#include <memory>

#include "daemon/http/connection.h"
#include "daemon/http/exchange.h"
#include "daemon/http/server.h"

namespace tensorfold::http {
namespace {

std::string http_date(int64_t unix_us) {
  const std::time_t seconds = static_cast<std::time_t>(unix_us / 1'000'000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[40];
  const size_t n = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return std::string(text, n);
}

void append_hex(std::string& out, size_t value) {
  char digits[17];
  const int n = std::snprintf(digits, sizeof digits, "%zx", value);
  out.append(digits, static_cast<size_t>(n));
}

bool has_no_body(int status) { return status < 200 || status == 204 || status == 304; }

}  // namespace

std::string Connection::head_text(const Response& response, bool stream, size_t body_bytes) const {
  std::string out = "HTTP/1.1 " + std::to_string(response.status) + " ";
  out += reason_phrase(response.status);
  out += "\r\nDate: " + http_date(server_.clock_.unix_us()) + "\r\n";
  for (const Header& field : response.headers) out += field.name + ": " + field.value + "\r\n";
  if (!has_no_body(response.status)) {
    out += "Content-Type: " + response.content_type + "\r\n";
    if (!stream) out += "Content-Length: " + std::to_string(body_bytes) + "\r\n";
    if (stream && chunked_) out += "Transfer-Encoding: chunked\r\n";
  }
  out += close_after_reply_ ? "Connection: close\r\n\r\n" : "Connection: keep-alive\r\n\r\n";
  return out;
}

void Connection::decorate(const Request& request, Response& response) const {
  if (server_.hooks_.decorate) server_.hooks_.decorate(request, response);
}

void Connection::respond(const Response& response) {
  if (state_ == State::kClosed) return;
  release_body();
  if (response.close) close_after_reply_ = true;
  std::string out = head_text(response, false, response.body.size());
  if (!head_only_ && !has_no_body(response.status)) out += response.body;
  send(std::move(out));
  finish_reply();
}

void Connection::begin_stream(const Response& head) {
  if (state_ == State::kClosed) return;
  release_body();
  chunked_ = exchange_->request().version_minor >= 1;
  if (!chunked_ || head.close) close_after_reply_ = true;
  send(head_text(head, true, 0));
}

void Connection::write_stream(std::string_view bytes) {
  if (state_ == State::kClosed || broken_ || bytes.empty() || head_only_) return;
  std::string out;
  if (chunked_) {
    out.reserve(bytes.size() + 16);
    append_hex(out, bytes.size());
    out += "\r\n";
    out += bytes;
    out += "\r\n";
  } else {
    out = bytes;
  }
  send(std::move(out));
  if (state_ != State::kClosed &&
      uv_stream_get_write_queue_size(stream()) > server_.limits_.write_backlog_bytes) {
    ++server_.counters_.slow_readers_total;
    close();  // a reader that does not read ends only itself
  }
}

void Connection::end_stream() {
  if (state_ == State::kClosed) return;
  if (chunked_ && !head_only_) send("0\r\n\r\n");
  finish_reply();
}

void Connection::send_error(int status, std::string_view message) {
  Response response;
  response.status = status;
  if (server_.hooks_.error_body) {
    response.body = server_.hooks_.error_body(parser_.request(), status, message);
  } else {
    response.content_type = "text/plain; charset=utf-8";
    response.body = std::string(message) + "\n";
  }
  response.close = true;
  parser_.request().body = {};
  if (status == 503) response.headers.push_back({"Retry-After", "1"});
  respond(response);
}

// Writes at once what the socket takes and queues the rest.
void Connection::send(std::string bytes) {
  if (state_ == State::kClosed || broken_) return;
  size_t done = 0;
  if (uv_stream_get_write_queue_size(stream()) == 0) {
    uv_buf_t buffer = uv_buf_init(bytes.data(), static_cast<unsigned>(bytes.size()));
    const int code = uv_try_write(stream(), &buffer, 1);
    if (code < 0 && code != UV_EAGAIN && code != UV_ENOSYS) {
      broken_ = true;
      close();
      return;
    }
    if (code > 0) done = static_cast<size_t>(code);
    if (done == bytes.size()) return;
  }
  auto* write = new Write{{}, std::move(bytes), this};
  write->request.data = write;
  uv_buf_t rest =
      uv_buf_init(write->bytes.data() + done, static_cast<unsigned>(write->bytes.size() - done));
  if (uv_write(&write->request, stream(), &rest, 1, on_written) != 0) {
    delete write;
    broken_ = true;
    close();
  }
}

void Connection::on_written(uv_write_t* request, int status) {
  std::unique_ptr<Write> write(static_cast<Write*>(request->data));
  if (status < 0 && status != UV_ECANCELED) {
    write->connection->broken_ = true;
    write->connection->close();
  }
}

void Connection::finish_reply() {
  if (auto exchange = std::move(exchange_)) {
    exchange_ = nullptr;
    --server_.exchanges_;
    exchange->detach();
  }
  if (state_ == State::kClosed) return;
  if (close_after_reply_) {
    linger();
    return;
  }
  chunked_ = head_only_ = false;
  parser_.reset();
  state_ = State::kReading;
  deadline_ms_ = now_ms() + server_.limits_.idle_ms;
  process();
}

// Ends our side and reads on for a moment: closing with unread input would reset the connection
// and could take the reply away from the client.
void Connection::linger() {
  state_ = State::kLingering;
  deadline_ms_ = now_ms() + server_.limits_.linger_ms;
  shutdown_.data = this;
  if (uv_shutdown(&shutdown_, stream(), on_shutdown) != 0) close();
}

void Connection::on_shutdown(uv_shutdown_t* request, int status) {
  auto& me = *static_cast<Connection*>(request->data);
  if (status == UV_ECANCELED) return;
  if (status != 0) me.close();
  me.deadline_ms_ = me.now_ms() + me.server_.limits_.linger_ms;
}

}  // namespace tensorfold::http
