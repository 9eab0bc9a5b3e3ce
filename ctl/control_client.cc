#include "ctl/control_client.h"

#include <fcntl.h>
#include <llhttp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ostream>
#include <utility>

#include "daemon/control/protocol.h"

namespace tensorfold::ctl {
namespace {

using SteadyClock = std::chrono::steady_clock;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Status timed_out(const std::string& path) {
  return Status(StatusCode::kDeadline, "tensorfoldd did not answer in time on " + path, {},
                "timeout");
}

// Waits until `events` or the deadline.
Status wait_for(int fd, short events, SteadyClock::time_point deadline, const std::string& path) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SteadyClock::now());
    if (left.count() <= 0) return timed_out(path);
    pollfd item{fd, events, 0};
    const int count = poll(&item, 1, static_cast<int>(left.count()));
    if (count > 0) return ok_status();
    if (count < 0 && errno != EINTR) return io_error("waiting for " + path, errno);
  }
}

Status connect_error(const std::string& path, int error) {
  if (error == ENOENT || error == ECONNREFUSED) {
    return Status(StatusCode::kUnavailable,
                  "tensorfoldd is not running (no answer on " + path + ")", {}, "not_running");
  }
  if (error == EACCES || error == EPERM) {
    return Status(StatusCode::kUnavailable,
                  "no permission for " + path + " (members of the group tensorfold have it)", {},
                  "permission");
  }
  return io_error("connecting to " + path, error);
}

Result<Descriptor> open_socket(const std::string& path, SteadyClock::time_point deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return invalid_argument("the socket path must have 1.." +
                            std::to_string(sizeof address.sun_path - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return io_error("control socket", errno);
  while (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno != EAGAIN && errno != EINTR) return connect_error(path, errno);
    // The daemon's backlog is full: look again in a moment.
    if (SteadyClock::now() >= deadline) return timed_out(path);
    poll(nullptr, 0, 20);
  }
  return socket;
}

Status send_all(int fd, std::string_view bytes, SteadyClock::time_point deadline,
                const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      TF_RETURN_IF_ERROR(wait_for(fd, POLLOUT, deadline, path));
    } else if (errno != EINTR) {
      return io_error("writing to " + path, errno);
    }
  }
  return ok_status();
}

// llhttp's view of one reply.
struct ReplyParser {
  llhttp_settings_t settings;
  llhttp_t parser;
  ControlReply reply;
  bool complete = false;

  ReplyParser() {
    llhttp_settings_init(&settings);
    settings.on_body = [](llhttp_t* p, const char* at, size_t length) {
      auto& me = *static_cast<ReplyParser*>(p->data);
      if (me.reply.body.size() + length > control::kControlReplyBytesMax) return -1;
      me.reply.body.append(at, length);
      return 0;
    };
    settings.on_message_complete = [](llhttp_t* p) {
      static_cast<ReplyParser*>(p->data)->complete = true;
      return static_cast<int>(HPE_PAUSED);
    };
    llhttp_init(&parser, HTTP_RESPONSE, &settings);
    parser.data = this;
  }
};

Result<ControlReply> read_reply(int fd, SteadyClock::time_point deadline, const std::string& path) {
  ReplyParser parser;
  char buffer[16 * 1024];
  while (!parser.complete) {
    const ssize_t count = recv(fd, buffer, sizeof buffer, 0);
    if (count < 0 && errno == EAGAIN) {
      TF_RETURN_IF_ERROR(wait_for(fd, POLLIN, deadline, path));
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io_error("reading from " + path, errno);
    if (count == 0) return data_loss("tensorfoldd ended the connection on " + path + " early");
    const llhttp_errno_t code = llhttp_execute(&parser.parser, buffer, static_cast<size_t>(count));
    if (code != HPE_OK && !parser.complete) {
      return data_loss("what answers on " + path + " does not speak HTTP");
    }
  }
  parser.reply.status = parser.parser.status_code;
  return std::move(parser.reply);
}

}  // namespace

Result<ControlReply> control_request(const std::string& socket_path, std::string_view method,
                                     std::string_view path, std::string_view body, int timeout_ms) {
  const auto deadline = SteadyClock::now() + std::chrono::milliseconds(timeout_ms);
  TF_ASSIGN_OR_RETURN(const Descriptor socket, open_socket(socket_path, deadline));
  std::string request =
      std::string(method) + " " + std::string(path) +
      " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  if (!body.empty()) request += "Content-Type: application/json\r\n";
  request += "Connection: close\r\n\r\n" + std::string(body);
  TF_RETURN_IF_ERROR(send_all(socket.get(), request, deadline, socket_path));
  return read_reply(socket.get(), deadline, socket_path);
}

namespace {

Result<Json> exchange_json(const Invocation& call, std::string_view method, std::string_view path,
                           std::string_view body, std::string* text) {
  TF_ASSIGN_OR_RETURN(ControlReply reply,
                      control_request(call.socket_path, method, path, body, call.timeout_ms));
  auto document = parse_json(reply.body);
  if (!document.ok()) return document.status().with_context("tensorfoldd's reply");
  if (reply.status != 200) {
    const Json* error = document->find("error");
    const Json* message = error != nullptr ? error->find("message") : nullptr;
    return Status(StatusCode::kUnavailable,
                  message != nullptr && message->is_string()
                      ? message->as_string()
                      : "tensorfoldd answered " + std::to_string(reply.status),
                  {}, reply.status == 403 ? "permission" : "");
  }
  if (text != nullptr) *text = std::move(reply.body);
  return document;
}

}  // namespace

Result<Json> control_get(const Invocation& call, std::string_view path, std::string* text) {
  return exchange_json(call, "GET", path, "", text);
}

Result<Json> control_post(const Invocation& call, std::string_view path, std::string_view body,
                          std::string* text) {
  return exchange_json(call, "POST", path, body, text);
}

int control_failure(const Invocation& call, const Status& status) {
  *call.err << "tfctl: " << status.message() << "\n";
  if (status.reason() == "not_running") return kExitNotRunning;
  if (status.reason() == "permission") return kExitPermission;
  if (status.reason() == "timeout") return kExitTimeout;
  return kExitFailed;
}

}  // namespace tensorfold::ctl
