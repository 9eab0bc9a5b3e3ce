// One HTTP/1.1 request and its reply over libcurl, TCP or a Unix socket, one connection each.
// Blocking, bounded in time and size; callable from several threads at once.
//
// Not done here: TLS, redirects, proxies, keep-alive. Model downloads have ctl/model/http_transfer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/status.h"

namespace tensorfold::ctl {

// Takes pieces of a 200's body as they come, with the time at which each had come; an error ends
// the exchange with that error.
using BodySink = std::function<Status(int64_t at_us, std::string_view bytes)>;

struct HttpCall {
  std::string url;             // "http://HOST:PORT/PATH"
  std::string unix_socket;     // instead of the URL's host; empty: TCP
  std::string resolved;        // CURLOPT_RESOLVE's form, so that no look-up is timed; or empty
  std::string method = "GET";  // or "POST"
  std::string body;            // JSON, or empty
  std::vector<std::string> headers;  // "Name: value"
  BodySink sink;                     // empty: the body is kept
  int64_t kept_bytes_max = 0;        // of a body that is kept
  int64_t streamed_bytes_max = 0;    // of one that goes to the sink
  int connect_ms = 0;                // for the connection to open
  int64_t total_ms = 0;              // for all of it
  int64_t idle_ms = 0;               // without a byte in either direction; 0: as long as total_ms
};

enum class HttpFault : unsigned char {
  kNone,
  kConnect,  // nobody answers: `error` says why
  kTimeout,  // total_ms or idle_ms went by
  kNotHttp,  // what answers speaks something else
  kCut,      // the connection ended before the reply did
  kLong,     // the body has more bytes than were to be taken
  kSink,     // the sink's error is in `refused`
  kOther,
};

struct HttpOutcome {
  HttpFault fault = HttpFault::kNone;
  int error = 0;       // kConnect: errno; 0: a Unix socket's backlog is full
  std::string detail;  // of a fault, in words
  Status refused;
  int status = 0;       // HTTP; valid without a fault
  std::string body;     // of a reply that did not go to the sink
  int64_t sent_us = 0;  // before the connection was opened
  int64_t end_us = 0;   // when the last byte had come
};

HttpOutcome exchange_http(const HttpCall& call, const Clock& clock);

// curl_global_init, once in a process.
void start_curl();

}  // namespace tensorfold::ctl
