#include "ctl/bench/http_wire.h"

#include <llhttp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

namespace tensorfold::ctl::bench {
namespace {

constexpr size_t kReadBytes = size_t{64} * 1024;

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

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

Status not_reachable(const std::string& where, const std::string& why) {
  return Status(StatusCode::kUnavailable, "no server answers on " + where + ": " + why, {},
                "not_running");
}

// llhttp's view of one reply: a 200's body goes to the sink, any other is kept.
struct ReplyParser {
  llhttp_settings_t settings;
  llhttp_t parser;
  const BodySink* sink;
  HttpReply reply;
  Status failure;
  int64_t at_us = 0;
  int64_t body_bytes = 0;
  bool complete = false;

  explicit ReplyParser(const BodySink& to) : sink(&to) {
    llhttp_settings_init(&settings);
    settings.on_body = [](llhttp_t* p, const char* at, size_t length) {
      return static_cast<ReplyParser*>(p->data)->take({at, length}) ? 0 : -1;
    };
    settings.on_message_complete = [](llhttp_t* p) {
      static_cast<ReplyParser*>(p->data)->complete = true;
      return static_cast<int>(HPE_PAUSED);
    };
    llhttp_init(&parser, HTTP_RESPONSE, &settings);
    parser.data = this;
  }

  bool take(std::string_view bytes) {
    const bool streamed = parser.status_code == 200 && *sink;
    const int64_t most = streamed ? kBenchStreamBytesMax : kBenchReplyBytesMax;
    body_bytes += static_cast<int64_t>(bytes.size());
    if (body_bytes > most) {
      failure = data_loss("the reply has more than " + std::to_string(most) + " bytes");
    } else if (streamed) {
      failure = (*sink)(at_us, bytes);
    } else {
      reply.body.append(bytes);
    }
    return failure.ok();
  }
};

class HttpWire final : public Wire {
 public:
  HttpWire(const Url& url, HttpWireOptions options, std::vector<Address> addresses,
           const Clock& clock)
      : options_(std::move(options)), addresses_(std::move(addresses)), clock_(clock) {
    const bool v6 = url.host.find(':') != std::string::npos;
    where_ = (v6 ? "[" + url.host + "]" : url.host) + ":" + url.port;
    base_ = url.base;
  }

  int64_t now_us() override { return clock_.monotonic_us(); }
  void sleep_us(int64_t us) override { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

  Result<HttpReply> exchange(const HttpRequest& request, const BodySink& sink) override {
    ReplyParser parser(sink);
    parser.reply.sent_us = now_us();
    const int64_t end_us = parser.reply.sent_us + kBenchExchangeMs * 1000;
    TF_ASSIGN_OR_RETURN(const Descriptor socket, connect_any());
    TF_RETURN_IF_ERROR(send_all(socket.get(), head(request) + request.body, end_us));
    TF_RETURN_IF_ERROR(read_reply(socket.get(), end_us, parser));
    parser.reply.status = parser.parser.status_code;
    return std::move(parser.reply);
  }

 private:
  std::string head(const HttpRequest& request) const {
    std::string text = request.method + " " + base_ + request.path +
                       " HTTP/1.1\r\nHost: " + where_ +
                       "\r\nUser-Agent: tfctl-bench\r\nAccept: */*\r\n";
    if (!options_.key.empty()) text += "Authorization: Bearer " + options_.key + "\r\n";
    if (!request.body.empty()) text += "Content-Type: application/json\r\n";
    if (request.method == "POST" || !request.body.empty()) {
      text += "Content-Length: " + std::to_string(request.body.size()) + "\r\n";
    }
    return text + "Connection: close\r\n\r\n";
  }

  Result<Descriptor> connect_any() {
    int error = ECONNREFUSED;
    for (const Address& address : addresses_) {
      Descriptor socket(
          ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (socket.get() < 0) return io_error("socket", errno);
      error = connect_one(socket.get(), address);
      if (error != 0) continue;
      const int on = 1;
      setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      return socket;
    }
    return not_reachable(where_, std::strerror(error));
  }

  int connect_one(int fd, const Address& address) {
    const auto* to = reinterpret_cast<const sockaddr*>(&address.storage);
    if (connect(fd, to, address.length) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    if (!wait_for(fd, POLLOUT, now_us() + int64_t{kBenchConnectMs} * 1000)) return ETIMEDOUT;
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
    return error;
  }

  // False: the deadline passed first.
  bool wait_for(int fd, short events, int64_t deadline_us) {
    for (;;) {
      const int64_t left_us = deadline_us - now_us();
      if (left_us <= 0) return false;
      pollfd item{fd, events, 0};
      const int64_t left_ms = std::min<int64_t>((left_us + 999) / 1000, 3'600'000);
      if (poll(&item, 1, static_cast<int>(left_ms)) > 0) return true;
    }
  }

  Status timed_out(const char* what) const {
    return Status(StatusCode::kDeadline,
                  where_ + " " + what + " within " +
                      std::to_string(options_.idle_timeout_ms / 1000) + " s (--idle-timeout)",
                  {}, "timeout");
  }

  int64_t idle_end(int64_t end_us) {
    return std::min(end_us, now_us() + int64_t{options_.idle_timeout_ms} * 1000);
  }

  // A server that refuses a body early may close its reading side: what it said is read then.
  Status send_all(int fd, std::string_view bytes, int64_t end_us) {
    while (!bytes.empty()) {
      const ssize_t count = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count >= 0) {
        bytes.remove_prefix(static_cast<size_t>(count));
      } else if (errno == EAGAIN) {
        if (!wait_for(fd, POLLOUT, idle_end(end_us))) return timed_out("took no more bytes");
      } else if (errno == EPIPE || errno == ECONNRESET) {
        return ok_status();
      } else if (errno != EINTR) {
        return io_error("sending to " + where_, errno);
      }
    }
    return ok_status();
  }

  Status read_reply(int fd, int64_t end_us, ReplyParser& parser) {
    std::vector<char> buffer(kReadBytes);
    while (!parser.complete) {
      const ssize_t count = recv(fd, buffer.data(), buffer.size(), 0);
      if (count < 0 && errno == EAGAIN) {
        if (!wait_for(fd, POLLIN, idle_end(end_us))) return timed_out("sent nothing");
        continue;
      }
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return io_error("reading from " + where_, errno);
      parser.at_us = parser.reply.end_us = now_us();
      const llhttp_errno_t code =
          count == 0 ? llhttp_finish(&parser.parser)
                     : llhttp_execute(&parser.parser, buffer.data(), static_cast<size_t>(count));
      if (!parser.failure.ok()) return parser.failure;
      if (parser.complete) break;
      if (count == 0) return data_loss(where_ + " ended the connection before its reply ended");
      if (code != HPE_OK) {
        return data_loss("what answers on " + where_ +
                         " does not speak HTTP: " + llhttp_get_error_reason(&parser.parser));
      }
    }
    return ok_status();
  }

  HttpWireOptions options_;
  std::vector<Address> addresses_;
  const Clock& clock_;
  std::string where_, base_;
};

bool is_port(const std::string& text) {
  if (text.empty() || text.size() > 5) return false;
  int value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + (c - '0');
  }
  return value >= 1 && value <= 65535;
}

bool is_visible(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace

Result<Url> parse_url(const std::string& text) {
  const auto wrong = [&](const std::string& why) {
    return invalid_argument("--url '" + text + "': " + why);
  };
  if (text.rfind("https://", 0) == 0) {
    return wrong("https is not spoken here; give the http address behind the proxy");
  }
  if (text.rfind("http://", 0) != 0) return wrong("it must begin with http://");
  if (!is_visible(text)) return wrong("it has a space or a control character in it");
  std::string rest = text.substr(7);
  Url url;
  if (const size_t slash = rest.find('/'); slash != std::string::npos) {
    url.base = rest.substr(slash);
    rest.resize(slash);
  }
  while (!url.base.empty() && url.base.back() == '/') url.base.pop_back();
  if (url.base.size() >= 3 && url.base.compare(url.base.size() - 3, 3, "/v1") == 0) {
    url.base.resize(url.base.size() - 3);
  }
  if (rest.find('@') != std::string::npos) return wrong("keys belong into --key-file");
  size_t colon = rest.rfind(':');
  if (!rest.empty() && rest.front() == '[') {
    const size_t close = rest.find(']');
    if (close == std::string::npos) return wrong("'[' without ']'");
    url.host = rest.substr(1, close - 1);
    colon = close + 1 < rest.size() ? close + 1 : std::string::npos;
    if (colon != std::string::npos && rest[colon] != ':') return wrong("no ':' after ']'");
  } else {
    url.host = rest.substr(0, colon);
  }
  url.port = colon == std::string::npos ? "80" : rest.substr(colon + 1);
  if (url.host.empty()) return wrong("no host");
  if (!is_port(url.port)) return wrong("'" + url.port + "' is not a port");
  return url;
}

Result<std::string> read_key_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return io_error("--key-file " + path, errno != 0 ? errno : ENOENT);
  std::string text(kBenchKeyFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kBenchKeyFileBytesMax) {
    return invalid_argument("--key-file " + path + " has more than " +
                            std::to_string(kBenchKeyFileBytesMax) + " bytes");
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
    if (line.empty() || line.front() == '#') continue;
    if (const size_t colon = line.find(':'); colon != std::string::npos) {
      line.erase(0, std::min(line.find_first_not_of(" \t", colon + 1), line.size()));
    }
    if (line.empty() || !is_visible(line)) {
      return invalid_argument("--key-file " + path + ": its first key is empty or has a space");
    }
    return line;
  }
  return invalid_argument("--key-file " + path + " has no key in it");
}

Result<std::unique_ptr<Wire>> open_http_wire(const Url& url, HttpWireOptions options,
                                             const Clock& clock) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int code = getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &list);
  if (code != 0) return not_reachable(url.host, gai_strerror(code));
  std::vector<Address> addresses;
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    Address address;
    if (item->ai_addrlen > sizeof address.storage) continue;
    std::memcpy(&address.storage, item->ai_addr, item->ai_addrlen);
    address.length = item->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(list);
  return std::unique_ptr<Wire>(
      std::make_unique<HttpWire>(url, std::move(options), std::move(addresses), clock));
}

}  // namespace tensorfold::ctl::bench
