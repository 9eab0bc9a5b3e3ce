// The HTTP surface: one table of routes, checks that hold for all of them (method, key, media
// type, origin), and the small handlers. Replies are in reply_service.h.
//
// Owner: the loop thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/api/api_keys.h"
#include "daemon/api/reply_service.h"
#include "daemon/api/response_store.h"
#include "daemon/http/message.h"
#include "daemon/http/server.h"
#include "engine/engine.h"

namespace tensorfold::api {

struct ApiOptions {
  ReplySettings chat;
  std::vector<std::string> cors_origins;  // or {"*"}
  std::optional<ApiKeys> keys;            // none: no key is asked for
};

class Api;

struct Route {
  http::Method method;
  std::string_view path;  // a final '*' stands for one more path segment
  bool open;              // needs no key
  Dialect dialect;        // of errors, and of the reply
  void (Api::*run)(const std::shared_ptr<http::Exchange>& exchange);
  std::string_view summary;
  std::string_view answer;                           // JSON Schema of a 200's body; empty: text
  ReadBody read = nullptr;                           // of routes that make a reply
  std::span<const ChatField> (*fields)() = nullptr;  // of routes with a JSON body
  bool json_body() const { return method == http::Method::kPost; }
};
std::span<const Route> route_table();
// By method (HEAD is GET) and path (one '/' at its end is passed over); nullptr: there is none.
const Route* find_route(http::Method method, std::string_view path);
std::string allowed_methods(std::string_view path);  // "GET, HEAD, OPTIONS"; empty: no such path
Dialect dialect_of(std::string_view path);           // of errors about it

std::string openapi_document();           // of all routes and fields
std::vector<std::string> metric_names();  // of /metrics, ours

// The word for a state, as /health and `tfctl status` say it.
std::string_view state_name(EngineStats::State state);

class Api {
 public:
  Api(Engine& engine, ApiOptions options, const Clock& clock, LogSink& log, LoopPort& port);

  // The server's hooks.
  std::optional<http::Response> precheck(const http::Request& request) const;
  void handle(const std::shared_ptr<http::Exchange>& exchange);
  void decorate(const http::Request& request, http::Response& response) const;

  ReplyService& chat() { return replies_; }
  const ReplyService& replies() const { return replies_; }
  void set_options(ApiOptions options);           // for requests from now on
  void watch_server(const http::Server* server);  // whose counters /metrics and /stats show

  // Handlers, named by the table.
  void run_health(const std::shared_ptr<http::Exchange>& exchange);
  void run_live(const std::shared_ptr<http::Exchange>& exchange);
  void run_models(const std::shared_ptr<http::Exchange>& exchange);
  void run_model(const std::shared_ptr<http::Exchange>& exchange);
  void run_reply(const std::shared_ptr<http::Exchange>& exchange);
  void run_tokenize(const std::shared_ptr<http::Exchange>& exchange);
  void run_detokenize(const std::shared_ptr<http::Exchange>& exchange);
  void run_count_tokens(const std::shared_ptr<http::Exchange>& exchange);
  void run_stats(const std::shared_ptr<http::Exchange>& exchange);
  void run_metrics(const std::shared_ptr<http::Exchange>& exchange);
  void run_openapi(const std::shared_ptr<http::Exchange>& exchange);
  void run_cancel(const std::shared_ptr<http::Exchange>& exchange);
  void run_stored(const std::shared_ptr<http::Exchange>& exchange);
  void run_forget(const std::shared_ptr<http::Exchange>& exchange);

 private:
  using Answer = http::Response (*)(const Engine& engine, const ReplySettings& settings,
                                    std::string_view body);
  std::optional<KeyIdentity> key_of(const http::Request& request) const;
  std::string model_json() const;
  void answer_on_worker(const std::shared_ptr<http::Exchange>& exchange, Answer answer);

  Engine& engine_;
  ApiOptions options_;
  const Clock& clock_;
  LoopPort& port_;
  const int64_t started_s_;  // Unix time; stands as "created" of the model
  ReplyService replies_;
  ResponseStore store_;
  const http::Server* server_ = nullptr;
};

}  // namespace tensorfold::api
