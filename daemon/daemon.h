// The running daemon: loop, servers, API, control, engine, and the states between start and exit.
//
// Owner: the loop thread; only wake-ups come from others.
//   loading -> serving -> draining -> closed, or loading/serving -> failed -> closed
#pragma once

#include <uv.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/api/api.h"
#include "daemon/control/commands.h"
#include "daemon/control/control.h"
#include "daemon/control/socket.h"
#include "daemon/http/server.h"
#include "daemon/idle_engine.h"
#include "daemon/log/journal_log.h"
#include "daemon/process.h"
#include "daemon/service/exit_code.h"
#include "daemon/service/memory_watch.h"
#include "daemon/service/notifier.h"
#include "daemon/service/uv_port.h"
#include "daemon/start.h"

namespace tensorfold {

inline constexpr int64_t kTickMs = 250;         // engine state, keepalives, watchdog
inline constexpr int64_t kDrainTickMs = 20;     // the same while draining
inline constexpr int64_t kLastWordsMs = 2'000;  // for the errors that end replies at a deadline

class Daemon final : public control::Commands {
 public:
  Daemon(Start start, const Clock& clock, log::JournalLog& log);
  ~Daemon() override;
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Opens sockets, makes the engine, turns the loop until told to stop. Gives the exit code.
  int run(const EngineFactory& make_engine);

  // What the control socket may ask for.
  Result<std::vector<std::string>> reload() override;
  Status drain() override;
  Status resume() override;
  void stop(bool now) override;
  LogLevel log_level() const override { return log_.level(); }
  void set_log_level(LogLevel level) override { log_.set_level(level); }
  const config::Config& config() const override { return start_.config; }
  const std::string& config_file() const override { return start_.line.config_file; }

 private:
  int open_sockets();
  int make_engine(const EngineFactory& factory);
  Result<std::unique_ptr<Engine>> engine_from(const EngineFactory& factory);
  http::ServerHooks api_hooks();
  http::ServerHooks control_hooks();
  void start_signals();
  void on_signal(int number);
  void on_tick();
  void watch_engine(const EngineStats& stats);
  std::string ready_text(const EngineStats& stats) const;
  void feed_watchdog(const EngineStats& stats);
  void watch_memory(int64_t now_us);
  void begin_drain(const char* why);
  void end_at_once(const char* why);
  void watch_drain();
  Result<std::vector<std::string>> take_over_settings();
  void leave(int exit_code);
  void tear_down();

  Start start_;
  const Clock& clock_;
  log::JournalLog& log_;
  service::Notifier notifier_;
  uv_loop_t loop_;
  uv_timer_t tick_;
  uv_signal_t signals_[3];
  std::unique_ptr<service::UvPort> port_;
  std::unique_ptr<http::Server> http_, control_http_;
  std::optional<control::ControlSocket> control_socket_;
  std::unique_ptr<Engine> engine_;
  IdleEngine* idle_ = nullptr;  // the same, if it may unload the model
  std::unique_ptr<api::Api> api_;
  std::unique_ptr<control::Control> control_;
  bool ready_ = false;
  bool draining_ = false;
  bool cut_ = false;  // the drain's deadline has passed
  int64_t started_us_ = 0;
  int64_t drain_deadline_us_ = 0;
  int64_t last_slow_tick_us_ = 0;
  std::string last_detail_;
  std::string reload_note_;  // at the end of the status line while the settings file is wrong
  uint64_t last_steps_ = 0;
  service::MemoryWatch memory_;
  int exit_code_ = service::kExitOk;
};

}  // namespace tensorfold
