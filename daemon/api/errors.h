// Status -> HTTP: the status code, the error object of the OpenAI API, and Retry-After.
//
//   {"error": {"message": ..., "type": ..., "param": ... or null, "code": ... or null}}
#pragma once

#include <string>

#include "daemon/http/message.h"
#include "engine/base/status.h"

namespace tensorfold::api {

inline constexpr int kRetryAfterSeconds = 2;  // said with 429 and 503

int http_status(const Status& status);
std::string error_json(int http_status, const Status& status);
// The object for replies that the HTTP server makes itself.
std::string error_json(int http_status, std::string_view message);
http::Response error_response(const Status& status);
http::Response error_response(int http_status, const Status& status);

}  // namespace tensorfold::api
