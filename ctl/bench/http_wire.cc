#include "ctl/bench/http_wire.h"

#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "ctl/http/exchange.h"

namespace tensorfold::ctl::bench {
namespace {

Status not_reachable(const std::string& where, const std::string& why) {
  return Status(StatusCode::kUnavailable, "no server answers on " + where + ": " + why, {},
                "not_running");
}

class HttpWire final : public Wire {
 public:
  HttpWire(const Url& url, HttpWireOptions options, std::string resolved, const Clock& clock)
      : options_(std::move(options)), resolved_(std::move(resolved)), clock_(clock) {
    const bool v6 = url.host.find(':') != std::string::npos;
    where_ = (v6 ? "[" + url.host + "]" : url.host) + ":" + url.port;
    base_ = url.base;
  }

  int64_t now_us() override { return clock_.monotonic_us(); }
  void sleep_us(int64_t us) override { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

  Result<HttpReply> exchange(const HttpRequest& request, const BodySink& sink) override {
    HttpCall call;
    call.url = "http://" + where_ + base_ + request.path;
    call.resolved = resolved_;
    call.method = request.method;
    call.body = request.body;
    if (!options_.key.empty()) call.headers.push_back("Authorization: Bearer " + options_.key);
    call.headers.push_back("User-Agent: tfctl-bench");
    call.sink = sink;
    call.kept_bytes_max = kBenchReplyBytesMax;
    call.streamed_bytes_max = kBenchStreamBytesMax;
    call.connect_ms = kBenchConnectMs;
    call.total_ms = kBenchExchangeMs;
    call.idle_ms = options_.idle_timeout_ms;
    HttpOutcome out = exchange_http(call, clock_);
    TF_RETURN_IF_ERROR(status_of(out));
    HttpReply reply;
    reply.status = out.status;
    reply.sent_us = out.sent_us;
    reply.end_us = out.end_us;
    reply.body = std::move(out.body);
    return reply;
  }

 private:
  Status status_of(const HttpOutcome& out) const {
    switch (out.fault) {
      case HttpFault::kNone:
        return ok_status();
      case HttpFault::kConnect:
        return not_reachable(where_, out.error != 0 ? std::strerror(out.error) : out.detail);
      case HttpFault::kTimeout:
        return Status(StatusCode::kDeadline,
                      where_ + " sent nothing within " +
                          std::to_string(options_.idle_timeout_ms / 1000) + " s (--idle-timeout)",
                      {}, "timeout");
      case HttpFault::kNotHttp:
        return data_loss("what answers on " + where_ + " does not speak HTTP: " + out.detail);
      case HttpFault::kCut:
        return data_loss(where_ + " ended the connection before its reply ended: " + out.detail);
      case HttpFault::kSink:
        return out.refused;
      case HttpFault::kLong:
      case HttpFault::kOther:
        break;
    }
    return data_loss(out.detail);
  }

  const HttpWireOptions options_;
  const std::string resolved_;  // the look-up's answer, for every exchange
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
  std::string addresses;
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    char text[NI_MAXHOST];
    const int unknown =
        getnameinfo(item->ai_addr, item->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    if (unknown != 0) continue;
    if (!addresses.empty()) addresses += ',';
    const bool v6 = item->ai_family == AF_INET6;
    addresses += v6 ? "[" + std::string(text) + "]" : std::string(text);
  }
  freeaddrinfo(list);
  // A host that is an address already needs no look-up.
  const bool numeric = url.host.find(':') != std::string::npos || addresses == url.host;
  std::string resolved = numeric ? "" : url.host + ":" + url.port + ":" + addresses;
  return std::unique_ptr<Wire>(
      std::make_unique<HttpWire>(url, std::move(options), std::move(resolved), clock));
}

}  // namespace tensorfold::ctl::bench
