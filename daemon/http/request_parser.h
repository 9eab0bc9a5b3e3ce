// Bytes -> Request, over llhttp in its strict mode. No sockets and no clock: a connection feeds
// it and asks what happened, so that a test or a fuzzer can do the same.
//
// Invariants: one message at a time (it stops at the end of the headers and of the message, so the
// caller decides what happens next); nothing is kept past the limits; after kError it is dead.
#pragma once

#include <llhttp.h>

#include <string>
#include <string_view>

#include "daemon/http/limits.h"
#include "daemon/http/message.h"

namespace tensorfold::http {

class RequestParser {
 public:
  enum class Event : unsigned char { kNeedMore, kHeaders, kComplete, kError };
  struct Step {
    Event event;
    size_t consumed;  // bytes of the input that are done with
  };

  explicit RequestParser(const Limits& limits);
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  Step feed(std::string_view data);
  void reset();  // ready for the next message of the same connection

  bool started() const { return started_; }  // a byte of the message has been seen
  bool headers_complete() const { return headers_complete_; }
  bool has_body() const;       // after kHeaders: a body is to come
  bool has_long_body() const;  // one that is not worth reading only to refuse the request
  // The message ends without another byte: feed() goes on with nothing.
  bool ready() const { return headers_complete_ && !complete_ && !has_body(); }
  bool expects_continue() const;           // after kHeaders
  Request& request() { return request_; }  // whole after kComplete

  int error_status() const { return error_status_; }  // after kError: the HTTP status to send
  const std::string& error_message() const { return error_message_; }

 private:
  static RequestParser& self(llhttp_t* parser);
  static int on_begin(llhttp_t* parser);
  static int on_url(llhttp_t* parser, const char* at, size_t length);
  static int on_field(llhttp_t* parser, const char* at, size_t length);
  static int on_value(llhttp_t* parser, const char* at, size_t length);
  static int on_value_complete(llhttp_t* parser);
  static int on_headers_complete(llhttp_t* parser);
  static int on_chunk(llhttp_t* parser);
  static int on_body(llhttp_t* parser, const char* at, size_t length);
  static int on_message_complete(llhttp_t* parser);

  int fail(int status, std::string message);  // gives the value that stops llhttp
  int count_header_bytes(size_t bytes);
  bool count_frames(size_t bytes);
  int body_too_long();
  int finish_headers();
  int split_target();

  Limits limits_;
  llhttp_settings_t settings_;
  llhttp_t parser_;
  Request request_;
  std::string target_, field_, value_;
  size_t header_bytes_ = 0;
  size_t header_count_ = 0;
  size_t wire_bytes_ = 0;  // of a chunked body, frames included
  size_t chunks_ = 0;
  bool started_ = false;
  bool headers_complete_ = false;
  bool complete_ = false;
  bool failed_ = false;
  int error_status_ = 0;
  std::string error_message_;
};

}  // namespace tensorfold::http
