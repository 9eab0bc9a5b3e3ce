#include "daemon/api/api.h"

#include <algorithm>

#include "daemon/api/errors.h"
#include "daemon/api/json_out.h"

namespace tensorfold::api {
namespace {

using http::Method;

// clang-format off
constexpr Route kRoutes[] = {
    // method, path, open, JSON body, handler, summary
    {Method::kGet, "/health", true, false, &Api::run_health,
     "200 when a request would be answered, 503 otherwise, with the state"},
    {Method::kGet, "/v1/health", true, false, &Api::run_health, "the same"},
    {Method::kGet, "/health/live", true, false, &Api::run_live, "200 while the loop turns"},
    {Method::kGet, "/v1/models", false, false, &Api::run_models, "the served model"},
    {Method::kGet, "/models", false, false, &Api::run_models, "the same"},
    {Method::kGet, "/v1/models/*", false, false, &Api::run_model, "one model"},
    {Method::kPost, "/v1/chat/completions", false, true, &Api::run_chat,
     "a reply to a conversation, whole or streamed"},
};
// clang-format on

bool path_matches(std::string_view pattern, std::string_view path) {
  if (pattern.back() != '*') return pattern == path;
  pattern.remove_suffix(1);
  return path.size() > pattern.size() && path.substr(0, pattern.size()) == pattern &&
         path.find('/', pattern.size()) == std::string_view::npos;
}

const Route* find_route(const http::Request& request) {
  const Method method = request.method == Method::kHead ? Method::kGet : request.method;
  for (const Route& route : kRoutes)
    if (route.method == method && path_matches(route.path, request.path)) return &route;
  return nullptr;
}

// "GET, HEAD, OPTIONS", or empty for an unknown path.
std::string allowed_methods(std::string_view path) {
  std::string out;
  for (const Route& route : kRoutes) {
    if (!path_matches(route.path, path)) continue;
    if (!out.empty()) out += ", ";
    out += http::method_name(route.method);
    if (route.method == Method::kGet) out += ", HEAD";
  }
  return out.empty() ? out : out + ", OPTIONS";
}

http::Response plain_error(int status, std::string message, std::string code) {
  return error_response(
      status, Status(StatusCode::kInvalidArgument, std::move(message), {}, std::move(code)));
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
    return plain_error(415, "Content-Type must be application/json, not " + type->substr(0, 128),
                       "unsupported_media_type");
  }
  const std::string* coding = request.header("content-encoding");
  if (coding != nullptr && *coding != "identity") {
    return plain_error(415, "Content-Encoding " + coding->substr(0, 64) + " is not supported",
                       "unsupported_content_encoding");
  }
  return std::nullopt;
}

}  // namespace

std::span<const Route> route_table() { return kRoutes; }

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
  }
  return "unknown";
}

Api::Api(Engine& engine, ApiOptions options, const Clock& clock, LogSink& log, LoopPort& port)
    : engine_(engine),
      options_(std::move(options)),
      clock_(clock),
      started_s_(clock.unix_us() / 1'000'000),
      chat_(engine, options_.chat, clock, log, port) {}

void Api::set_options(ApiOptions options) {
  options_ = std::move(options);
  chat_.set_settings(options_.chat);
}

std::optional<std::string> Api::label_of(const http::Request& request) const {
  if (!options_.keys) return std::string();
  return options_.keys->label_of(request);
}

std::optional<http::Response> Api::precheck(const http::Request& request) const {
  const std::string allow = allowed_methods(request.path);
  if (allow.empty() && request.path != "*") {
    return plain_error(404, "no such path: " + request.path.substr(0, 256), "not_found");
  }
  if (request.method == Method::kOptions) return std::nullopt;
  const Route* route = find_route(request);
  if (route == nullptr) {
    auto response = plain_error(
        405, std::string(http::method_name(request.method)) + " is not allowed for " + request.path,
        "method_not_allowed");
    response.headers.push_back({"Allow", allow});
    return response;
  }
  if (!route->open && !label_of(request)) {
    auto response = plain_error(401, "a valid API key is needed (Authorization: Bearer KEY)",
                                "invalid_api_key");
    response.headers.push_back({"WWW-Authenticate", "Bearer"});
    return response;
  }
  if (route->json_body) return check_body_headers(request);
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
  const Route* route = find_route(request);
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
  if (request.method != Method::kOptions) return;
  response.headers.push_back({"Access-Control-Allow-Methods", allowed_methods(request.path)});
  response.headers.push_back({"Access-Control-Allow-Headers",
                              "Authorization, Content-Type, "
                              "X-Api-Key"});
  response.headers.push_back({"Access-Control-Max-Age", "600"});
}

void Api::run_health(const std::shared_ptr<http::Exchange>& exchange) {
  const EngineStats stats = engine_.stats();
  const bool ready = stats.state == EngineStats::State::kReady;
  http::Response response;
  response.status = ready ? 200 : 503;
  JsonOut json(response.body);
  json.open_object().key("status").string(ready ? "ok" : state_name(stats.state));
  json.key("state").string(state_name(stats.state));
  if (!options_.keys) {  // with keys, strangers learn no more than that
    json.key("ok").boolean(ready).key("detail").string(stats.state_detail);
    json.key("requests_running").number(stats.slots_busy);
    json.key("requests_waiting").number(stats.waiting);
    json.key("requests_total").number(stats.requests_total);
    json.key("prompt_tokens_total").number(stats.prompt_tokens_total);
    json.key("cached_tokens_total").number(stats.cached_tokens_total);
    json.key("completion_tokens_total").number(stats.completion_tokens_total);
    json.key("prefill_seconds_total").number(stats.prefill_seconds_total);
    json.key("decode_seconds_total").number(stats.decode_seconds_total);
    json.key("rounds_total").number(stats.rounds_total);
    json.key("drafted_total").number(stats.drafted_total);
    json.key("accepted_total").number(stats.accepted_total);
    json.key("context_length").number(stats.context);
    json.key("streams").open_object().key("decoding").number(stats.slots_busy - stats.prefilling);
    json.key("prefilling").number(stats.prefilling).key("max").number(stats.slots_total);
    json.close_object();
  }
  json.close_object();
  if (!ready) response.headers.push_back({"Retry-After", std::to_string(kRetryAfterSeconds)});
  exchange->respond(std::move(response));
}

void Api::run_live(const std::shared_ptr<http::Exchange>& exchange) {
  http::Response response;
  response.body = "{\"status\":\"ok\"}";
  exchange->respond(std::move(response));
}

std::string Api::model_json() const {
  const EngineStats stats = engine_.stats();
  std::string out;
  JsonOut json(out);
  json.open_object().key("id").string(options_.chat.served_name).key("object").string("model");
  json.key("created").number(started_s_).key("owned_by").string("tensorfold");
  if (stats.context > 0) json.key("max_model_len").number(stats.context);
  json.close_object();
  return out;
}

void Api::run_models(const std::shared_ptr<http::Exchange>& exchange) {
  http::Response response;
  JsonOut json(response.body);
  json.open_object().key("object").string("list").key("data").open_list();
  json.raw(model_json()).close_list().close_object();
  exchange->respond(std::move(response));
}

void Api::run_model(const std::shared_ptr<http::Exchange>& exchange) {
  const std::string& path = exchange->request().path;
  const std::string id = path.substr(path.rfind('/') + 1);
  if (id != options_.chat.served_name) {
    exchange->respond(error_response(Status(StatusCode::kNotFound,
                                            "The model `" + id.substr(0, 128) + "` does not exist",
                                            "model", "model_not_found")));
    return;
  }
  http::Response response;
  response.body = model_json();
  exchange->respond(std::move(response));
}

void Api::run_chat(const std::shared_ptr<http::Exchange>& exchange) {
  chat_.handle(exchange, label_of(exchange->request()).value_or(""));
}

}  // namespace tensorfold::api
