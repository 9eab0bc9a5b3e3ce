// Checks that hold for every route, and dispatch. The small handlers are in info_routes.cc.
#include "daemon/api/api.h"

#include <algorithm>

#include "daemon/api/errors.h"

namespace tensorfold::api {
namespace {

using http::Method;

constexpr size_t kEchoedHeadersBytesMax = 1024;  // of Access-Control-Request-Headers

http::Response plain_error(std::string_view path, int status, std::string message,
                           std::string code) {
  return error_response(
      dialect_of(path), status,
      Status(StatusCode::kInvalidArgument, std::move(message), {}, std::move(code)));
}

bool is_json(std::string_view media_type) {
  std::string type(media_type.substr(0, media_type.find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  for (char& c : type)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
  return type == "application/json" || (type.rfind("application/", 0) == 0 && type.size() > 17 &&
                                        type.compare(type.size() - 5, 5, "+json") == 0);
}

std::optional<http::Response> check_body_headers(const http::Request& request) {
  if (const std::string* type = request.header("content-type"); type && !is_json(*type)) {
    return plain_error(request.path, 415,
                       "Content-Type must be application/json, not " + type->substr(0, 128),
                       "unsupported_media_type");
  }
  const std::string* coding = request.header("content-encoding");
  if (coding != nullptr && *coding != "identity") {
    return plain_error(request.path, 415,
                       "Content-Encoding " + coding->substr(0, 64) + " is not supported",
                       "unsupported_content_encoding");
  }
  return std::nullopt;
}

// The headers that a preflight asks for, if they are no more than names; else those of the APIs.
std::string allowed_headers(const http::Request& request) {
  const std::string* asked = request.header("access-control-request-headers");
  const bool names = asked != nullptr && !asked->empty() &&
                     asked->size() <= kEchoedHeadersBytesMax &&
                     std::all_of(asked->begin(), asked->end(), [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                              (c >= '0' && c <= '9') || c == '-' || c == ',' || c == ' ';
                     });
  return names ? *asked : "Authorization, Content-Type, X-Api-Key, Anthropic-Version";
}

}  // namespace

std::string_view state_name(EngineStats::State state) {
  switch (state) {
    case EngineStats::State::kLoading:
      return "loading";
    case EngineStats::State::kReady:
      return "ready";
    case EngineStats::State::kDraining:
      return "draining";
    case EngineStats::State::kFailed:
      return "failed";
    case EngineStats::State::kStopped:
      return "stopped";
    case EngineStats::State::kWaiting:
      return "waiting";
  }
  return "unknown";
}

Api::Api(Engine& engine, ApiOptions options, const Clock& clock, LogSink& log, LoopPort& port)
    : engine_(engine),
      options_(std::move(options)),
      clock_(clock),
      port_(port),
      started_s_(clock.unix_us() / 1'000'000),
      replies_(engine, options_.chat, clock, log, port) {}

void Api::set_options(ApiOptions options) {
  options_ = std::move(options);
  replies_.set_settings(options_.chat);
}

void Api::watch_server(const http::Server* server) { server_ = server; }

std::optional<KeyIdentity> Api::key_of(const http::Request& request) const {
  if (!options_.keys) return KeyIdentity();
  return options_.keys->identify(request);
}

std::optional<http::Response> Api::precheck(const http::Request& request) const {
  const std::string allow = allowed_methods(request.path);
  const bool asks_about_all = request.path == "*" && request.method == Method::kOptions;
  if (asks_about_all || (!allow.empty() && request.method == Method::kOptions)) return std::nullopt;
  const Route* route = find_route(request.method, request.path);
  const bool open = route != nullptr && route->open;
  // Without a key nobody learns which paths there are.
  if (!open && !key_of(request)) {
    auto response =
        plain_error(request.path, 401, "a valid API key is needed (Authorization: Bearer KEY)",
                    "invalid_api_key");
    response.headers.push_back({"WWW-Authenticate", "Bearer"});
    return response;
  }
  if (allow.empty()) {
    return plain_error(request.path, 404, "no such path: " + request.path.substr(0, 256),
                       "not_found");
  }
  if (route == nullptr) {
    auto response = plain_error(
        request.path, 405,
        std::string(http::method_name(request.method)) + " is not allowed for " + request.path,
        "method_not_allowed");
    response.headers.push_back({"Allow", allow});
    return response;
  }
  if (route->json_body()) return check_body_headers(request);
  return std::nullopt;
}

void Api::handle(const std::shared_ptr<http::Exchange>& exchange) {
  const http::Request& request = exchange->request();
  if (request.method == Method::kOptions) {
    http::Response response;
    response.status = 204;
    response.headers.push_back({"Allow", allowed_methods(request.path)});
    exchange->respond(std::move(response));
    return;
  }
  const Route* route = find_route(request.method, request.path);
  TF_CHECK_MSG(route != nullptr, "precheck lets only routed requests through");
  (this->*route->run)(exchange);
}

void Api::decorate(const http::Request& request, http::Response& response) const {
  const std::string* origin = request.header("origin");
  if (origin == nullptr || options_.cors_origins.empty()) return;
  const auto& allowed = options_.cors_origins;
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (!any && std::find(allowed.begin(), allowed.end(), *origin) == allowed.end()) return;
  response.headers.push_back({"Access-Control-Allow-Origin", any ? "*" : *origin});
  if (!any) response.headers.push_back({"Vary", "Origin"});
  if (request.method != Method::kOptions) {
    response.headers.push_back(
        {"Access-Control-Expose-Headers", "X-Request-Id, Request-Id, Retry-After"});
    return;
  }
  response.headers.push_back({"Access-Control-Allow-Methods", allowed_methods(request.path)});
  response.headers.push_back({"Access-Control-Allow-Headers", allowed_headers(request)});
  response.headers.push_back({"Access-Control-Max-Age", "600"});
}

void Api::run_reply(const std::shared_ptr<http::Exchange>& exchange) {
  const http::Request& request = exchange->request();
  const Route* route = find_route(request.method, request.path);
  const KeyIdentity key = key_of(request).value_or(KeyIdentity());
  ReplyService::Prepare prepare;
  if (route->dialect == Dialect::kResponses) {
    prepare = [this, label = key.label](ReplyOrder& order) { return store_.attach(order, label); };
  }
  replies_.handle(exchange, key, route->dialect, route->read, prepare);
}

}  // namespace tensorfold::api
