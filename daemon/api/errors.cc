#include "daemon/api/errors.h"

#include "daemon/api/json_out.h"
#include "engine/base/utf8.h"

namespace tensorfold::api {
namespace {

std::string_view type_of(int http_status) {
  if (http_status == 429) return "rate_limit_error";
  return http_status < 500 ? "invalid_request_error" : "server_error";
}

std::string render(int http_status, std::string_view message, std::string_view param,
                   std::string_view code) {
  std::string out;
  JsonOut json(out);
  json.open_object().key("error").open_object();
  json.key("message").string(utf8_lossy(message)).key("type").string(type_of(http_status));
  json.key("param");
  param.empty() ? json.null() : json.string(utf8_lossy(param));
  json.key("code");
  code.empty() ? json.null() : json.string(code);
  json.close_object().close_object();
  return out;
}

std::string_view messages_type_of(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string render_messages(int http_status, const Status& status) {
  std::string out;
  JsonOut json(out);
  json.open_object().key("type").string("error").key("error").open_object();
  json.key("type").string(messages_type_of(http_status));
  const std::string& param = status.param();
  const bool named = param.empty() || status.message().find(param) != std::string::npos;
  json.key("message").string(
      utf8_lossy(named ? status.message() : param + ": " + status.message()));
  json.close_object().close_object();
  return out;
}

}  // namespace

int http_status(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return 200;
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kTooMany:
      return 429;
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled:
    case StatusCode::kDeadline:
      return 503;
    case StatusCode::kDataLoss:
    case StatusCode::kIo:
    case StatusCode::kInternal:
      return 500;
  }
  return 500;
}

std::string error_json(int http_status, const Status& status) {
  return render(http_status, status.message(), status.param(), status.reason());
}

std::string error_json(int http_status, std::string_view message) {
  return render(http_status, message, "", "");
}

std::string error_json(Dialect dialect, int http_status, const Status& status) {
  if (dialect == Dialect::kMessages) return render_messages(http_status, status);
  // The engine knows a conversation by its name in the chat API.
  const bool renamed = dialect == Dialect::kResponses && status.param() == "messages";
  return render(http_status, status.message(), renamed ? "input" : status.param(), status.reason());
}

http::Response error_response(Dialect dialect, int http_status, const Status& status) {
  http::Response response;
  response.status = http_status;
  response.body = error_json(dialect, http_status, status);
  if (http_status == 429 || http_status == 503) {
    response.headers.push_back({"Retry-After", std::to_string(kRetryAfterSeconds)});
  }
  return response;
}

http::Response error_response(Dialect dialect, const Status& status) {
  return error_response(dialect, http_status(status), status);
}

http::Response error_response(int http_status, const Status& status) {
  return error_response(Dialect::kChat, http_status, status);
}

http::Response error_response(const Status& status) {
  return error_response(http_status(status), status);
}

}  // namespace tensorfold::api
