// Connection's writing half: heads, whole replies, streams, backlog, and the polite last close.
#include <algorithm>
#include <charconv>
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

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kLastChunk = "0\r\n\r\n";
constexpr size_t kPartsMax = 5;  // of one write: a head, a chunk's size, its bytes, two ends

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
  const std::string head = head_text(response, false, response.body.size());
  const bool with_body = !head_only_ && !has_no_body(response.status);
  const std::string_view parts[] = {head, with_body ? std::string_view(response.body) : ""};
  send(parts);
  finish_reply();
}

void Connection::begin_stream(const Response& head) {
  if (state_ == State::kClosed) return;
  release_body();
  chunked_ = exchange_->request().version_minor >= 1;
  if (!chunked_ || head.close) close_after_reply_ = true;
  send_chunk(head_text(head, true, 0), head.body, "");
}

void Connection::write_stream(std::string_view bytes) {
  if (state_ == State::kClosed || broken_ || bytes.empty() || head_only_) return;
  send_chunk("", bytes, "");
  if (state_ != State::kClosed &&
      uv_stream_get_write_queue_size(stream()) > server_.limits_.write_backlog_bytes) {
    ++server_.counters_.slow_readers_total;
    close();  // a reader that does not read ends only itself
  }
}

void Connection::end_stream(std::string_view last) {
  if (state_ == State::kClosed) return;
  send_chunk("", last, chunked_ && !head_only_ ? kLastChunk : "");
  finish_reply();
}

// A piece of a stream with what comes before and behind it, in one write and without a copy.
void Connection::send_chunk(std::string_view head, std::string_view bytes, std::string_view tail) {
  char size[24];
  std::string_view parts[kPartsMax] = {head};
  size_t count = 1;
  if (!bytes.empty() && !head_only_) {
    if (chunked_) {
      const auto end = std::to_chars(size, size + 16, bytes.size(), 16).ptr;
      std::copy(kLineEnd.begin(), kLineEnd.end(), end);
      parts[count++] = {size, static_cast<size_t>(end - size) + kLineEnd.size()};
    }
    parts[count++] = bytes;
    if (chunked_) parts[count++] = kLineEnd;
  }
  parts[count++] = tail;
  send({parts, count});
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

// Writes at once what the socket takes; only the rest is copied, and queued.
void Connection::send(std::span<const std::string_view> parts) {
  if (state_ == State::kClosed || broken_) return;
  uv_buf_t buffers[kPartsMax];
  unsigned count = 0;
  size_t done = 0, total = 0;
  for (const std::string_view part : parts) {
    if (part.empty()) continue;
    total += part.size();
    // libuv's type for reading and writing: a buffer that is written is not changed.
    buffers[count++] =
        uv_buf_init(const_cast<char*>(part.data()), static_cast<unsigned>(part.size()));
  }
  if (count == 0) return;
  if (uv_stream_get_write_queue_size(stream()) == 0) {
    const int code = uv_try_write(stream(), buffers, count);
    if (code < 0 && code != UV_EAGAIN && code != UV_ENOSYS) {
      broken_ = true;
      close();
      return;
    }
    if (code > 0) done = static_cast<size_t>(code);
    if (done == total) return;
  }
  auto write = std::make_unique<Write>(Write{{}, {}, this});
  write->request.data = write.get();
  write->bytes.reserve(total - done);
  for (unsigned i = 0; i < count; ++i) {
    const size_t skip = std::min(done, size_t{buffers[i].len});
    write->bytes.append(buffers[i].base + skip, buffers[i].len - skip);
    done -= skip;
  }
  uv_buf_t rest = uv_buf_init(write->bytes.data(), static_cast<unsigned>(write->bytes.size()));
  if (uv_write(&write->request, stream(), &rest, 1, on_written) == 0) {
    (void)write.release();  // until on_written
    return;
  }
  broken_ = true;
  close();
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
