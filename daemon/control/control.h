// The control surface: one table of verbs over the Unix socket.
//
// Whoever may connect may read. Root, the daemon's own user and members of the socket's group may
// also change things; each change is logged with the caller's uid and pid.
//
// Owner: the loop thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "daemon/api/api.h"
#include "daemon/control/commands.h"
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
  int64_t started_us = 0;   // monotonic
  int64_t socket_gid = -1;  // group of the control socket
};

class Control;

struct ControlRoute {
  http::Method method;
  std::string_view path;
  bool changes;  // not for everybody, and logged
  void (Control::*run)(const std::shared_ptr<http::Exchange>& exchange);
  std::string_view summary;
};
std::span<const ControlRoute> control_table();

class Control {
 public:
  // `http` is the API's server, for its counters.
  struct Parts {
    Engine& engine;
    api::Api& api;
    const http::Server& http;
    Commands& commands;
    const Clock& clock;
    LogSink& log;
  };
  Control(const Parts& parts, Facts facts);

  std::optional<http::Response> precheck(const http::Request& request) const;
  void handle(const std::shared_ptr<http::Exchange>& exchange);

  std::string status_json() const;

  // One per row of the table.
  void run_status(const std::shared_ptr<http::Exchange>& exchange);
  void run_metrics(const std::shared_ptr<http::Exchange>& exchange);
  void run_config(const std::shared_ptr<http::Exchange>& exchange);       // changes.cc
  void run_log_level(const std::shared_ptr<http::Exchange>& exchange);    // changes.cc
  void run_set_level(const std::shared_ptr<http::Exchange>& exchange);    // changes.cc
  void run_reload(const std::shared_ptr<http::Exchange>& exchange);       // changes.cc
  void run_drain(const std::shared_ptr<http::Exchange>& exchange);        // changes.cc
  void run_resume(const std::shared_ptr<http::Exchange>& exchange);       // changes.cc
  void run_stop(const std::shared_ptr<http::Exchange>& exchange);         // changes.cc
  void run_requests(const std::shared_ptr<http::Exchange>& exchange);     // changes.cc
  void run_cancel(const std::shared_ptr<http::Exchange>& exchange);       // changes.cc
  void run_cache(const std::shared_ptr<http::Exchange>& exchange);        // cache_control.cc
  void run_cache_flush(const std::shared_ptr<http::Exchange>& exchange);  // cache_control.cc

 private:
  bool may_change(const http::PeerCredentials* peer) const;
  void log_change(http::Exchange& exchange, const std::string& what);

  Engine& engine_;
  api::Api& api_;
  const http::Server& http_;
  Commands& commands_;
  const Clock& clock_;
  LogSink& log_;
  const Facts facts_;
};

}  // namespace tensorfold::control
