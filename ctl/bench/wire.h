// How measuring code reaches a server: one HTTP exchange at a time per thread, with the time at
// which each piece of a reply came. Time is the wire's: measuring code reads no other clock, so a
// test that scripts a wire scripts the time too.
//
// A wire is used by several threads at once; each call blocks its own thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ctl/http/exchange.h"
#include "engine/base/status.h"

namespace tensorfold::ctl::bench {

struct HttpRequest {
  std::string method;  // "GET" or "POST"
  std::string path;    // "/v1/models"
  std::string body;    // JSON, or empty
};

struct HttpReply {
  int status = 0;
  int64_t sent_us = 0;  // before the connection was opened
  int64_t end_us = 0;   // when the last byte had come
  std::string body;     // of a reply that did not go to the sink
};

class Wire {
 public:
  virtual ~Wire() = default;

  // Any HTTP status is a reply; an error is a server that can't be reached ("not_running"), does
  // not go on ("timeout") or does not speak HTTP. `sink` may be empty.
  virtual Result<HttpReply> exchange(const HttpRequest& request, const BodySink& sink) = 0;

  virtual int64_t now_us() = 0;  // monotonic
  virtual void sleep_us(int64_t us) = 0;
};

}  // namespace tensorfold::ctl::bench
