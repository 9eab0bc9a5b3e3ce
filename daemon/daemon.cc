#include "daemon/daemon.h"

#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "daemon/api/errors.h"
#include "daemon/config/key_table.h"
#include "daemon/control/protocol.h"
#include "daemon/role.h"
#include "daemon/service/advice.h"
#include "daemon/service/oom_score.h"
#include "daemon/service/port_owner.h"
#include "daemon/service/time_slice.h"

namespace tensorfold {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP};
constexpr int64_t kSlowTickUs = 200'000;  // comments and stalls of replies

int port_of(const std::string& listen) { return std::atoi(listen.c_str() + listen.rfind(':') + 1); }

int exit_code_of(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return service::kExitConfig;
    case StatusCode::kUnavailable:
    case StatusCode::kUnsupported:
      return service::kExitUnavailable;
    case StatusCode::kInternal:
      return service::kExitInternal;
    default:
      return service::kExitIo;
  }
}

int64_t group_of(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 ? static_cast<int64_t>(info.st_gid) : -1;
}

// Keys whose values differ and that only a restart takes over.
std::vector<std::string> restart_keys(const config::Config& now, const config::Config& wanted) {
  std::vector<std::string> out;
  for (const config::Key& key : config::key_table()) {
    if (key.effect != config::Effect::kReload && value_text(now, key) != value_text(wanted, key))
      out.emplace_back(key.name);
  }
  return out;
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

template <typename Handle>
uv_handle_t* handle_of(Handle& handle) {
  return reinterpret_cast<uv_handle_t*>(&handle);
}

}  // namespace

Daemon::Daemon(Start start, const Clock& clock, log::JournalLog& log)
    : start_(std::move(start)), clock_(clock), log_(log), notifier_(clock) {
  TF_CHECK_EQ(uv_loop_init(&loop_), 0);
  started_us_ = clock.monotonic_us();
  port_ = std::make_unique<service::UvPort>(&loop_, [this] {
    if (api_) api_->chat().on_wake();
  });
}

Daemon::~Daemon() { TF_CHECK_EQ(uv_loop_close(&loop_), 0); }

http::ServerHooks Daemon::api_hooks() {
  http::ServerHooks hooks;
  hooks.handle = [this](const std::shared_ptr<http::Exchange>& e) { api_->handle(e); };
  hooks.precheck = [this](const http::Request& r) { return api_->precheck(r); };
  hooks.decorate = [this](const http::Request& q, http::Response& r) { api_->decorate(q, r); };
  hooks.error_body = [](const http::Request& q, int status, std::string_view message) {
    return api::error_json(api::dialect_of(q.path), status, invalid_argument(std::string(message)));
  };
  return hooks;
}

http::ServerHooks Daemon::control_hooks() {
  http::ServerHooks hooks = api_hooks();
  hooks.handle = [this](const std::shared_ptr<http::Exchange>& e) { control_->handle(e); };
  hooks.precheck = [this](const http::Request& r) { return control_->precheck(r); };
  hooks.decorate = nullptr;
  return hooks;
}

// Gives an exit code; kExitOk is "go on".
int Daemon::open_sockets() {
  http_ = std::make_unique<http::Server>(&loop_, start_.limits, api_hooks(), clock_, log_);
  const Status status = start_.listen_fd >= 0 ? http_->listen_fd(start_.listen_fd, false)
                                              : http_->listen_tcp(start_.config.http_listen);
  if (!status.ok()) {
    std::string message = "http.listen: " + status.message();
    const int port = port_of(start_.config.http_listen);
    const bool low = port < 1024 && geteuid() != 0 && status.reason().empty();
    if (status.reason() == "in_use") {
      message += "; it is " + service::describe_port(port) + service::kAdvicePort;
    } else {
      message += low ? service::kAdviceLowPort : service::kAdviceSettings;
    }
    log_.error(message, {{"TF_EVENT", "start_failed"}});
    if (status.code() == StatusCode::kInvalidArgument) return service::kExitConfig;
    return low ? service::kExitPermission : service::kExitOs;
  }
  auto socket = control::ControlSocket::bind(start_.control_path);
  if (!socket.ok()) {
    const bool in_use = socket.status().reason() == "in_use";
    const char* advice = in_use ? service::kAdviceInstance : service::kAdviceSettings;
    log_.error(socket.status().message() + advice, {{"TF_EVENT", "start_failed"}});
    if (in_use) return service::kExitUnavailable;
    if (socket.status().code() == StatusCode::kInvalidArgument) return service::kExitConfig;
    return access(start_.control_path.substr(0, start_.control_path.rfind('/')).c_str(), W_OK) != 0
               ? service::kExitPermission
               : service::kExitOs;
  }
  control_socket_.emplace(std::move(socket).value());
  http::Limits limits;
  limits.body_bytes = control::kControlBodyBytesMax;
  limits.connections = control::kControlConnectionsMax;
  control_http_ = std::make_unique<http::Server>(&loop_, limits, control_hooks(), clock_, log_);
  const Status opened = control_http_->listen_fd(control_socket_->release_fd(), true);
  if (opened.ok()) return service::kExitOk;
  log_.error("control socket " + start_.control_path + ": " + opened.message(),
             {{"TF_EVENT", "start_failed"}});
  return service::kExitOs;
}

Result<std::unique_ptr<Engine>> Daemon::engine_from(const EngineFactory& factory) {
  const int64_t idle_s = start_.config.engine_idle_unload_s;
  if (idle_s == 0) return factory(start_.engine, clock_, log_);
  TF_ASSIGN_OR_RETURN(auto engine,
                      IdleEngine::create(factory, start_.engine, idle_s * 1'000'000, clock_, log_));
  idle_ = engine.get();
  return std::unique_ptr<Engine>(std::move(engine));
}

int Daemon::make_engine(const EngineFactory& factory) {
  auto engine = engine_from(factory);
  if (!engine.ok()) {
    log_.error("the engine cannot start: " + engine.status().message() + service::kAdviceEngine,
               {{"TF_EVENT", "start_failed"}});
    return exit_code_of(engine.status().code());
  }
  engine_ = std::move(engine).value();
  api_ = std::make_unique<api::Api>(*engine_, start_.api, clock_, log_, *port_);
  api_->watch_server(http_.get());
  control::Facts facts;
  facts.version = TF_VERSION;
  facts.model_name = start_.model_name;
  facts.model_path = start_.model_path;
  facts.device = start_.engine.device;
  const std::string& listen = start_.config.http_listen;
  facts.listen = listen.substr(0, listen.rfind(':') + 1) + std::to_string(http_->port());
  facts.queue_requests = start_.config.limits_queue_requests;
  facts.started_us = started_us_;
  facts.socket_gid = group_of(start_.control_path);
  const control::Control::Parts parts{*engine_, *api_, *http_, *this, clock_, log_};
  control_ = std::make_unique<control::Control>(parts, facts);
  const char* held = start_.listen_fd >= 0 ? " (held by the service manager)" : "";
  log_.info("listening on " + facts.listen + held + ", control socket " + start_.control_path +
                ", loading " + start_.model_name + " from " + start_.model_path,
            {{"TF_EVENT", "started"}, {"TF_MODEL", start_.model_name}});
  return service::kExitOk;
}

void Daemon::start_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    uv_signal_init(&loop_, &signals_[i]);
    signals_[i].data = this;
    uv_signal_start(
        &signals_[i],
        [](uv_signal_t* signal, int number) {
          static_cast<Daemon*>(signal->data)->on_signal(number);
        },
        kSignals[i]);
  }
}

int Daemon::run(const EngineFactory& factory) {
  uv_timer_init(&loop_, &tick_);
  tick_.data = this;
  start_signals();
  if (service::offer_to_oom_killer()) log_.info("GB10: the OOM killer may take this process first");
  exit_code_ = open_sockets();
  if (exit_code_ == service::kExitOk) exit_code_ = make_engine(factory);
  if (exit_code_ == service::kExitOk) {
    notifier_.status("loading " + start_.model_name);
    uv_timer_start(
        &tick_, [](uv_timer_t* timer) { static_cast<Daemon*>(timer->data)->on_tick(); }, 0,
        kTickMs);
    service::take_short_slice();  // the engine's threads have begun: they do not inherit it
    uv_run(&loop_, UV_RUN_DEFAULT);
  }
  tear_down();
  return exit_code_;
}

void Daemon::on_signal(int number) {
  if (number == SIGHUP) {
    (void)reload();  // logged there
  } else if (!draining_) {
    begin_drain(number == SIGTERM ? "SIGTERM" : "SIGINT");
  } else {
    end_at_once("told to stop again");
  }
}

void Daemon::end_at_once(const char* why) {
  log_.info(std::string(why) + ": ending at once");
  api_->chat().cancel_all(unavailable("the server is stopping", "server_stopping"));
  leave(service::kExitOk);
}

Status Daemon::drain() {
  if (draining_) return unavailable("the server is stopping", "server_stopping");
  engine_->drain();
  return ok_status();
}

Status Daemon::resume() {
  if (draining_) return unavailable("the server is stopping", "server_stopping");
  engine_->resume();
  return ok_status();
}

void Daemon::stop(bool now) {
  if (!draining_) begin_drain(now ? "tfctl stop --now" : "tfctl stop");
  // Replies are cut in the loop's next turn, when the caller has its answer.
  if (now) drain_deadline_us_ = clock_.monotonic_us();
}

Result<std::vector<std::string>> Daemon::reload() {
  log_.info("reloading the settings");
  // Before it is ready the service manager waits for the first READY, which a reload must not send.
  const bool tell = ready_ && !draining_;
  if (tell) notifier_.reloading();
  auto left = take_over_settings();
  const Status status = left.ok() ? ok_status() : left.status();
  if (status.ok()) {
    log_.info(left->empty() ? "settings reloaded"
                            : "settings reloaded; these wait for a restart: " + joined(*left),
              {{"TF_EVENT", "reloaded"}});
  } else {
    log_.error("settings not reloaded: " + status.message(), {{"TF_EVENT", "reload_rejected"}});
  }
  reload_note_ = status.ok() ? "" : "; settings not reloaded, see the journal";
  if (tell) {
    notifier_.ready(status.ok() ? "ready: settings reloaded"
                                : "ready: settings not reloaded: " + status.message());
  }
  return left;
}

// All or nothing: what is wrong changes nothing.
Result<std::vector<std::string>> Daemon::take_over_settings() {
  if (start_.line.config_file.empty()) {
    log_.warning("there is no settings file; only API keys are read again");
  }
  TF_ASSIGN_OR_RETURN(const config::Loaded loaded, settings_of(start_.line));
  TF_ASSIGN_OR_RETURN(auto options, api_options_of(loaded.config, start_.model_name));
  api_->set_options(std::move(options));
  log_.set_level(log::level_of(loaded.config.log_level));
  for (const config::Key& key : config::key_table()) {
    if (key.effect == config::Effect::kReload) copy_value(key, loaded.config, start_.config);
  }
  return restart_keys(start_.config, loaded.config);
}

void Daemon::on_tick() {
  const EngineStats stats = engine_->stats();
  const int64_t now_us = clock_.monotonic_us();
  if (now_us - last_slow_tick_us_ >= kSlowTickUs) {
    last_slow_tick_us_ = now_us;
    api_->chat().tick();
    watch_memory(now_us);
  }
  feed_watchdog(stats);
  draining_ ? watch_drain() : watch_engine(stats);
}

void Daemon::watch_memory(int64_t now_us) {
  const auto room = service::host_room();
  if (!room) return;
  const int64_t floor =
      service::memory_floor_bytes(start_.config.limits_memory_floor_mib, room->total_bytes);
  const auto mib = [](int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  const std::string short_of = "this machine is short of memory: " + mib(room->available_bytes) +
                               " are available, the floor is " + mib(floor);
  switch (memory_.look(room->available_bytes, floor, now_us)) {
    case service::MemoryAct::kNone:
      return;
    case service::MemoryAct::kHold:
      api_->chat().hold(unavailable(short_of + "; try again later", "low_memory"));
      malloc_trim(0);
      log_.warning(short_of + ": no new requests are begun", {{"TF_EVENT", "memory_short"}});
      return;
    case service::MemoryAct::kCutNewest:
      if (api_->chat().cut_newest(unavailable(short_of, "low_memory")))
        log_.warning(short_of + ": the newest reply is cut", {{"TF_EVENT", "memory_short"}});
      return;
    case service::MemoryAct::kRelease:
      api_->chat().hold(ok_status());
      log_.write(LogLevel::kNotice,
                 "memory is free again (" + mib(room->available_bytes) + "): requests are begun",
                 {{"TF_EVENT", "memory_again"}});
  }
}

void Daemon::watch_engine(const EngineStats& stats) {
  using State = EngineStats::State;
  if (stats.state == State::kFailed) {
    if (ready_) {
      log_.error("the engine failed: " + stats.state_detail, {{"TF_EVENT", "engine_failed"}});
    } else {
      // Settings and memory are no matter of the files.
      const bool files = stats.failure != StatusCode::kInvalidArgument &&
                         stats.failure != StatusCode::kUnavailable;
      log_.error("the model cannot be loaded: " + stats.state_detail +
                     (files ? service::kAdviceModel : ""),
                 {{"TF_EVENT", "model_failed"}});
    }
    notifier_.status("failed: " + stats.state_detail);
    leave(ready_ ? service::kExitInternal : exit_code_of(stats.failure));
    return;
  }
  // A worker is ready when it waits for its head; a head when all ranks are there.
  const bool worker = start_.engine.cluster.role == ClusterOptions::Role::kWorker;
  const bool waiting = stats.state == State::kWaiting;
  if ((stats.state == State::kReady || (waiting && worker)) && !ready_) {
    ready_ = true;
    const double seconds = static_cast<double>(clock_.monotonic_us() - started_us_) / 1e6;
    char text[64];
    std::snprintf(text, sizeof text, " is ready after %.1f s, context ", seconds);
    log_.info(start_.model_name + text + std::to_string(stats.context),
              {{"TF_EVENT", "ready"}, {"TF_MODEL", start_.model_name}});
    notifier_.ready("ready: " + start_.model_name);
    return;
  }
  if (!ready_) {
    if (waiting || stats.state_detail != last_detail_) notifier_.extend_timeout();
    last_detail_ = stats.state_detail;
    notifier_.status(waiting ? waiting_text(stats)
                             : "loading " + start_.model_name + ": " + stats.state_detail);
    return;
  }
  if (waiting) return notifier_.status(waiting_text(stats) + reload_note_);
  notifier_.status(ready_text(stats) + reload_note_);
}

std::string Daemon::ready_text(const EngineStats& stats) const {
  if (idle_ != nullptr && idle_->memory() != IdleEngine::Memory::kLoaded)
    return "ready: " + stats.state_detail + ", " + std::to_string(stats.waiting) + " waiting";
  return "ready: " + std::to_string(stats.slots_busy) + " running, " +
         std::to_string(stats.waiting) + " waiting" +
         (memory_.holds() ? ", short of memory: nothing new is begun" : "");
}

void Daemon::feed_watchdog(const EngineStats& stats) {
  const bool idle = stats.slots_busy == 0 && stats.waiting == 0;
  const bool moved = stats.steps_total != last_steps_;
  last_steps_ = stats.steps_total;
  // A load makes no steps; how long clients wait for it has a bound of its own.
  const bool loading = idle_ != nullptr && idle_->memory() == IdleEngine::Memory::kLoading;
  notifier_.watchdog(idle || moved || loading || !ready_);
}

void Daemon::begin_drain(const char* why) {
  draining_ = true;
  engine_->drain();
  const int64_t seconds = start_.config.limits_drain_s;
  drain_deadline_us_ = clock_.monotonic_us() + seconds * 1'000'000;
  const std::string left = std::to_string(api_->chat().active());
  log_.info(std::string(why) + ": stopping; " + left + " replies get up to " +
                std::to_string(seconds) + " s to finish",
            {{"TF_EVENT", "draining"}});
  notifier_.stopping("draining: " + left + " left");
  uv_timer_start(
      &tick_, [](uv_timer_t* timer) { static_cast<Daemon*>(timer->data)->on_tick(); }, 0,
      kDrainTickMs);
}

// Done when no reply is being made and none is unsent; at the deadline replies are cut with an
// error, and get a moment to say so.
void Daemon::watch_drain() {
  const int64_t now_us = clock_.monotonic_us();
  const bool quiet = api_->chat().active() == 0 && http_->exchanges() == 0 &&
                     may_end(start_.engine.cluster, engine_->stats());
  if (quiet && http_->unsent_bytes() == 0) {
    log_.info("stopped", {{"TF_EVENT", "stopped"}});
    leave(service::kExitOk);
    return;
  }
  notifier_.extend_timeout();
  if (now_us < drain_deadline_us_) return;
  if (!cut_) {
    cut_ = true;
    log_.warning("drain deadline: " + std::to_string(api_->chat().active()) + " replies are cut",
                 {{"TF_EVENT", "drain_timeout"}});
    api_->chat().cancel_all(unavailable("the server is stopping", "server_stopping"));
  } else if (now_us > drain_deadline_us_ + kLastWordsMs * 1000) {
    leave(service::kExitOk);
  }
}

void Daemon::leave(int exit_code) {
  exit_code_ = exit_code;
  uv_stop(&loop_);
}

// Servers first (their clients go), then the engine (its threads end), then the wake-up handle that
// those threads used, then what the loop's last callbacks needed.
void Daemon::tear_down() {
  if (http_) http_->close(nullptr);
  if (control_http_) control_http_->close(nullptr);
  uv_close(handle_of(tick_), nullptr);
  for (uv_signal_t& signal : signals_) uv_close(handle_of(signal), nullptr);
  uv_run(&loop_, UV_RUN_DEFAULT);
  control_socket_.reset();
  control_.reset();
  api_.reset();
  engine_.reset();
  port_->close();
  uv_run(&loop_, UV_RUN_DEFAULT);
}

}  // namespace tensorfold
