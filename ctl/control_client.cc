#include "ctl/control_client.h"

#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ostream>
#include <thread>
#include <utility>

#include "ctl/http/exchange.h"
#include "daemon/control/protocol.h"
#include "engine/base/clock.h"

namespace tensorfold::ctl {
namespace {

constexpr auto kBacklogPause = std::chrono::milliseconds(20);

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

Status status_of(const HttpOutcome& out, const std::string& path) {
  switch (out.fault) {
    case HttpFault::kNone:
      return ok_status();
    case HttpFault::kConnect:
      if (out.error != ETIMEDOUT && out.error != 0) return connect_error(path, out.error);
      [[fallthrough]];
    case HttpFault::kTimeout:
      return Status(StatusCode::kDeadline, "tensorfoldd did not answer in time on " + path, {},
                    "timeout");
    case HttpFault::kNotHttp:
      return data_loss("what answers on " + path + " does not speak HTTP");
    case HttpFault::kCut:
      return data_loss("tensorfoldd ended the connection on " + path + " early");
    case HttpFault::kLong:
    case HttpFault::kSink:
    case HttpFault::kOther:
      break;
  }
  return data_loss("tensorfoldd on " + path + ": " + out.detail);
}

}  // namespace

Result<ControlReply> control_request(const std::string& socket_path, std::string_view method,
                                     std::string_view path, std::string_view body, int timeout_ms) {
  if (socket_path.empty() || socket_path.size() >= sizeof sockaddr_un{}.sun_path) {
    return invalid_argument("the socket path must have 1.." +
                            std::to_string(sizeof sockaddr_un{}.sun_path - 1) + " bytes");
  }
  const Clock& clock = system_clock();
  const int64_t end_us = clock.monotonic_us() + int64_t{timeout_ms} * 1000;
  HttpCall call;
  call.url = "http://localhost" + std::string(path);
  call.unix_socket = socket_path;
  call.method = std::string(method);
  call.body = std::string(body);
  call.kept_bytes_max = control::kControlReplyBytesMax;
  for (;;) {
    call.total_ms = std::max<int64_t>(1, (end_us - clock.monotonic_us()) / 1000);
    call.connect_ms = static_cast<int>(call.total_ms);
    HttpOutcome out = exchange_http(call, clock);
    // The daemon's backlog is full: nothing was sent, and it may be looked for again.
    const bool full = out.fault == HttpFault::kConnect && out.error == 0;
    if (full && clock.monotonic_us() < end_us) {
      std::this_thread::sleep_for(kBacklogPause);
      continue;
    }
    TF_RETURN_IF_ERROR(status_of(out, socket_path));
    return ControlReply{out.status, std::move(out.body)};
  }
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
