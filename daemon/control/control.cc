#include "daemon/control/control.h"

#include <unistd.h>

#include <fstream>

#include "daemon/api/errors.h"
#include "daemon/api/json_out.h"
#include "daemon/control/cluster_status.h"
#include "daemon/control/protocol.h"

namespace tensorfold::control {
namespace {

using http::Method;

constexpr ControlRoute kRoutes[] = {
    // method, path, changes, run, summary
    {Method::kGet, kStatusPath, false, &Control::run_status, "the state of the service"},
    {Method::kGet, kMetricsPath, false, &Control::run_metrics, "the API's GET /metrics"},
    {Method::kGet, kConfigPath, false, &Control::run_config, "the settings in use"},
    {Method::kGet, kLogLevelPath, false, &Control::run_log_level, "what is logged"},
    {Method::kPost, kLogLevelPath, true, &Control::run_set_level, "log more or less"},
    {Method::kPost, kReloadPath, true, &Control::run_reload, "read the settings again"},
    {Method::kPost, kDrainPath, true, &Control::run_drain, "refuse new requests"},
    {Method::kPost, kResumePath, true, &Control::run_resume, "accept requests again"},
    {Method::kPost, kStopPath, true, &Control::run_stop, "end the process"},
    {Method::kGet, kRequestsPath, false, &Control::run_requests, "the replies in progress"},
    {Method::kPost, kCancelPath, true, &Control::run_cancel, "cancel a reply"},
    {Method::kGet, kCachePath, false, &Control::run_cache, "the prefix cache"},
    {Method::kPost, kCacheFlushPath, true, &Control::run_cache_flush, "empty the prefix cache"},
};

bool fits(const ControlRoute& route, const http::Request& request) {
  const bool head = request.method == Method::kHead && route.method == Method::kGet;
  return route.path == request.path && (route.method == request.method || head);
}

const ControlRoute* find_route(const http::Request& request) {
  for (const ControlRoute& route : kRoutes)
    if (fits(route, request)) return &route;
  return nullptr;
}

std::string allowed_methods(std::string_view path) {
  std::string out;
  for (const ControlRoute& route : kRoutes) {
    if (route.path != path) continue;
    out += (out.empty() ? "" : ", ") + std::string(http::method_name(route.method));
  }
  return out;
}

// Bytes of memory that are in RAM, from /proc.
int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t total = 0, resident = 0;
  return in >> total >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

void put_model(api::JsonOut& json, const Facts& facts, const EngineStats& stats,
               const Engine& engine) {
  json.key("model").open_object().key("name").string(facts.model_name);
  json.key("path").string(facts.model_path);
  const bool loaded =
      stats.state == EngineStats::State::kReady || stats.state == EngineStats::State::kDraining;
  if (loaded) {
    const ModelInfo info = engine.model();
    json.key("architecture").string(info.architecture);
    json.key("fingerprint").string(info.fingerprint);
    json.key("parameters").number(info.parameters).key("vocabulary").number(info.vocab_size);
    json.key("max_context").number(info.max_context);
  }
  json.key("context").number(stats.context).close_object();
}

void put_load(api::JsonOut& json, const EngineStats& stats, int64_t queue_requests) {
  json.key("slots").open_object().key("total").number(stats.slots_total);
  json.key("busy").number(stats.slots_busy).key("prefilling").number(stats.prefilling);
  json.close_object();
  json.key("queue").open_object().key("waiting").number(stats.waiting);
  json.key("limit").number(queue_requests).close_object();
  json.key("drafting").open_object().key("paused").number(stats.drafts_paused);
  json.key("alarm").boolean(stats.health_alarm).close_object();
  json.key("rates").open_object();
  json.key("decode_tokens_per_second").number(stats.decode_tokens_per_second);
  json.key("prefill_tokens_per_second").number(stats.prefill_tokens_per_second).close_object();
  json.key("cache").open_object().key("pool_tokens").number(stats.pool_tokens_total);
  json.key("used_tokens").number(stats.pool_tokens_used);
  json.key("cached_tokens").number(stats.pool_tokens_cached).close_object();
  json.key("memory").open_object().key("resident_bytes").number(resident_bytes());
  json.key("weight_bytes").number(stats.weight_bytes);
  json.key("cache_bytes").number(stats.cache_bytes).close_object();
}

void put_totals(api::JsonOut& json, const EngineStats& stats) {
  json.key("totals").open_object().key("requests").number(stats.requests_total);
  json.key("prompt_tokens").number(stats.prompt_tokens_total);
  json.key("cached_tokens").number(stats.cached_tokens_total);
  json.key("completion_tokens").number(stats.completion_tokens_total);
  json.key("rounds").number(stats.rounds_total).key("drafted").number(stats.drafted_total);
  json.key("accepted").number(stats.accepted_total);
  json.key("draft_pauses").number(stats.draft_pauses_total).key("steps").number(stats.steps_total);
  json.key("forced_drafted").number(stats.forced_drafted_total);
  json.key("forced_accepted").number(stats.forced_accepted_total);
  json.key("masks_put_off").number(stats.masks_put_off_total);
  json.key("loops_closed").number(stats.loops_closed_total);
  json.key("canaries").number(stats.canaries_total);
  json.key("canaries_wrong").number(stats.canaries_wrong_total);
  json.key("health_alarms").number(stats.health_alarms_total);
  json.key("new_starts").number(stats.new_starts_total);
  json.key("loops_ended").number(stats.loops_ended_total);
  json.key("prefill_seconds").number(stats.prefill_seconds_total);
  json.key("decode_seconds").number(stats.decode_seconds_total).close_object();
}

}  // namespace

std::span<const ControlRoute> control_table() { return kRoutes; }

Control::Control(const Parts& parts, Facts facts)
    : engine_(parts.engine),
      api_(parts.api),
      http_(parts.http),
      commands_(parts.commands),
      clock_(parts.clock),
      log_(parts.log),
      facts_(std::move(facts)) {}

void Control::run_metrics(const std::shared_ptr<http::Exchange>& exchange) {
  api_.run_metrics(exchange);
}

std::optional<http::Response> Control::precheck(const http::Request& request) const {
  if (find_route(request) != nullptr) return std::nullopt;
  const std::string allowed = allowed_methods(request.path);
  if (allowed.empty()) {
    return api::error_response(
        404, Status(StatusCode::kNotFound, "no such path: " + request.path.substr(0, 256)));
  }
  auto response =
      api::error_response(405, invalid_argument(std::string(http::method_name(request.method)) +
                                                " is not allowed for " + request.path));
  response.headers.push_back({"Allow", allowed});
  return response;
}

void Control::handle(const std::shared_ptr<http::Exchange>& exchange) {
  const ControlRoute* route = find_route(exchange->request());
  TF_CHECK_MSG(route != nullptr, "precheck lets only routed requests through");
  if (route->changes && !may_change(exchange->credentials())) {
    log_.warning("control: " + exchange->peer() + " may not " + std::string(route->summary));
    exchange->respond(api::error_response(
        403, Status(StatusCode::kInvalidArgument,
                    "only root, the service's user and members of the control socket's group may " +
                        std::string(route->summary),
                    {}, "permission")));
    return;
  }
  (this->*route->run)(exchange);
}

bool Control::may_change(const http::PeerCredentials* peer) const {
  if (peer == nullptr) return false;
  return peer->uid == 0 || peer->uid == static_cast<int64_t>(geteuid()) ||
         (facts_.socket_gid >= 0 && peer->in_group(facts_.socket_gid));
}

void Control::log_change(http::Exchange& exchange, const std::string& what) {
  const http::PeerCredentials* peer = exchange.credentials();
  const std::string uid = std::to_string(peer == nullptr ? -1 : peer->uid);
  const std::string pid = std::to_string(peer == nullptr ? -1 : peer->pid);
  log_.write(LogLevel::kNotice, what + " (uid " + uid + ", pid " + pid + ")",
             {{"TF_EVENT", "control_change"}, {"TF_PEER_UID", uid}, {"TF_PEER_PID", pid}});
}

void Control::run_status(const std::shared_ptr<http::Exchange>& exchange) {
  http::Response response;
  response.body = status_json();
  exchange->respond(std::move(response));
}

std::string Control::status_json() const {
  const EngineStats stats = engine_.stats();
  const Status& held = api_.chat().held();
  std::string out;
  api::JsonOut json(out);
  json.open_object().key("schema_version").number(kSchemaVersion);
  json.key("version").string(facts_.version).key("pid").number(getpid());
  const bool waits = stats.state == EngineStats::State::kReady && !held.ok();
  json.key("state").string(waits ? held.reason() : api::state_name(stats.state));
  json.key("detail").string(waits ? held.message() : stats.state_detail);
  json.key("uptime_s").number((clock_.monotonic_us() - facts_.started_us) / 1'000'000);
  put_model(json, facts_, stats, engine_);
  json.key("device").string(facts_.device).key("listen").string(facts_.listen);
  put_load(json, stats, facts_.queue_requests);
  put_totals(json, stats);
  put_cluster(json, stats);
  const http::ServerCounters& http = http_.counters();
  const api::ReplyCounters& chat = api_.chat().counters();
  json.key("http").open_object().key("connections").number(http_.connections());
  json.key("requests_total").number(http.requests_total);
  json.key("bad_requests_total").number(http.bad_requests_total);
  json.key("timeouts_total").number(http.timeouts_total);
  json.key("slow_readers_total").number(http.slow_readers_total);
  json.key("refused_total").number(chat.refused_total);
  json.key("failed_total").number(chat.failed_total);
  json.key("cancelled_total").number(chat.cancelled_total).close_object();
  json.close_object();
  return out;
}

}  // namespace tensorfold::control
