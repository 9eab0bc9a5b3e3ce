// The HTTP surface: one table of routes, checks that hold for all of them (method, key, media
// type, origin), and the small handlers. Chat is in chat_service.h.
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
#include "daemon/api/chat_service.h"
#include "daemon/http/message.h"
#include "engine/engine.h"

namespace tensorfold::api {

struct ApiOptions {
  ChatSettings chat;
  std::vector<std::string> cors_origins;  // or {"*"}
  std::optional<ApiKeys> keys;            // none: no key is asked for
};

class Api;

struct Route {
  http::Method method;
  std::string_view path;  // a final '*' stands for one more path segment
  bool open;              // needs no key
  bool json_body;
  void (Api::*run)(const std::shared_ptr<http::Exchange>& exchange);
  std::string_view summary;
};
std::span<const Route> route_table();

// The word for a state, as /health and `tfctl status` say it.
std::string_view state_name(EngineStats::State state);

class Api {
 public:
  Api(Engine& engine, ApiOptions options, const Clock& clock, LogSink& log, LoopPort& port);

  // The server's hooks.
  std::optional<http::Response> precheck(const http::Request& request) const;
  void handle(const std::shared_ptr<http::Exchange>& exchange);
  void decorate(const http::Request& request, http::Response& response) const;

  ChatService& chat() { return chat_; }
  void set_options(ApiOptions options);  // for requests from now on

  // Handlers, named by the table.
  void run_health(const std::shared_ptr<http::Exchange>& exchange);
  void run_live(const std::shared_ptr<http::Exchange>& exchange);
  void run_models(const std::shared_ptr<http::Exchange>& exchange);
  void run_model(const std::shared_ptr<http::Exchange>& exchange);
  void run_chat(const std::shared_ptr<http::Exchange>& exchange);

 private:
  std::optional<std::string> label_of(const http::Request& request) const;
  std::string model_json() const;

  Engine& engine_;
  ApiOptions options_;
  const Clock& clock_;
  const int64_t started_s_;  // Unix time; stands as "created" of the model
  ChatService chat_;
};

}  // namespace tensorfold::api
