// Status -> HTTP: the status code, the error object of each API, and Retry-After.
//
//   {"error": {"message": ..., "type": ..., "param": ... or null, "code": ... or null}}
//   /v1/messages: {"type": "error", "error": {"type": ..., "message": ...}}, where a field's path
//   stands in the message
#pragma once

#include <string>

#include "daemon/api/dialect.h"
#include "daemon/http/message.h"
#include "engine/base/status.h"

namespace tensorfold::api {

inline constexpr int kRetryAfterSeconds = 2;  // said with 429 and 503

int http_status(const Status& status);
std::string error_json(int http_status, const Status& status);
// The object for replies that the HTTP server makes itself.
std::string error_json(int http_status, std::string_view message);
std::string error_json(Dialect dialect, int http_status, const Status& status);
http::Response error_response(const Status& status);
http::Response error_response(Dialect dialect, const Status& status);
http::Response error_response(Dialect dialect, int http_status, const Status& status);
http::Response error_response(int http_status, const Status& status);

}  // namespace tensorfold::api
