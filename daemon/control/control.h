// The control surface: one table of verbs over the Unix socket. GET /status now.
//
// Owner: the loop thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "daemon/api/api.h"
#include "daemon/http/message.h"
#include "daemon/http/server.h"
#include "engine/engine.h"

namespace tensorfold::control {

// What the process knows about itself.
struct Facts {
  std::string version;
  std::string model_name, model_path, device;
  std::string listen;
  int64_t queue_requests = 0;
  int64_t started_us = 0;  // monotonic
};

class Control;

struct ControlRoute {
  http::Method method;
  std::string_view path;
  void (Control::*run)(const std::shared_ptr<http::Exchange>& exchange);
  std::string_view summary;
};
std::span<const ControlRoute> control_table();

class Control {
 public:
  // `http` is the API's server, for its counters.
  Control(Engine& engine, api::Api& api, const http::Server& http, Facts facts, const Clock& clock);

  std::optional<http::Response> precheck(const http::Request& request) const;
  void handle(const std::shared_ptr<http::Exchange>& exchange);

  void run_status(const std::shared_ptr<http::Exchange>& exchange);
  std::string status_json() const;

 private:
  Engine& engine_;
  api::Api& api_;
  const http::Server& http_;
  const Facts facts_;
  const Clock& clock_;
};

}  // namespace tensorfold::control
