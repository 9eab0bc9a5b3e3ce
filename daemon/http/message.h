// An HTTP request and a reply as plain data, and Exchange: one request being answered.
//
// No libuv here: daemon/api and daemon/control are written against this header alone. Everything
// in it belongs to the loop thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/http/credentials.h"

namespace tensorfold::http {

enum class Method : unsigned char { kGet, kHead, kPost, kPut, kPatch, kDelete, kOptions, kOther };

std::string_view method_name(Method method);

struct Header {
  std::string name;  // of a request: lower case
  std::string value;
};

struct Request {
  Method method = Method::kOther;
  std::string path;   // of the target, up to '?'; not percent-decoded
  std::string query;  // after '?', without it
  std::vector<Header> headers;
  std::string body;
  int version_minor = 1;  // HTTP/1.x
  bool keep_alive = true;

  // The first field of that (lower-case) name, or nullptr.
  const std::string* header(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<Header> headers;
  std::string body;
  bool close = false;  // end the connection after this reply
};

std::string_view reason_phrase(int status);

// One request being answered, exactly once: respond(), or begin_stream() write()* end_stream().
// Each of these is one write to the socket, so what is ready at the same time is given together.
// After the peer has gone every call is a no-op. A handler may answer at once or keep the Exchange
// and answer later.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual Request& request() = 0;
  virtual std::string peer() const = 0;  // "127.0.0.1:51234", or "unix:pid=12,uid=0"
  virtual const PeerCredentials* credentials() const { return nullptr; }  // Unix sockets only
  virtual void respond(Response response) = 0;
  virtual void begin_stream(Response head) = 0;  // its body is what the stream begins with
  virtual void write(std::string_view bytes) = 0;
  virtual void end_stream(std::string_view last) = 0;
  virtual void abort() = 0;  // drop the connection: a cut reply must not look like a whole one
  virtual bool gone() const = 0;
  // Called once, from the loop and never from inside another call of this object, when the peer
  // goes away before the reply is complete.
  virtual void on_gone(std::function<void()> callback) = 0;
};

}  // namespace tensorfold::http
