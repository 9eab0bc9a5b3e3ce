// argv to exit code.
#include "daemon/process.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "daemon/check_config.h"
#include "daemon/daemon.h"
#include "daemon/preflight/settings.h"
#include "daemon/preflight/startup.h"
#include "daemon/service/advice.h"
#include "daemon/service/listen_fds.h"
#include "daemon/service/notifier.h"

namespace tensorfold {
namespace {

// The cheap checks of the machine; the exit code when it can't do what the settings ask for.
int preflight_code(const Start& start, LogSink& log) {
  const auto machine = preflight::live_machine();
  // After a boot the GPU's nodes may come later than the service: waited for here, since the
  // manager gives up after a few starts.
  service::Notifier manager(system_clock());
  bool told = false;
  const preflight::StartupFindings found = preflight::await_startup(
      *machine, preflight::settings_from(start.config, start.line.config_file),
      [&](const std::string& missing) {
        if (!told) log.warning("waiting: " + missing, {{"TF_EVENT", "preflight"}});
        told = true;
        manager.status("waiting for the GPU: " + missing);
        manager.extend_timeout();
        std::this_thread::sleep_for(std::chrono::milliseconds(preflight::kDeviceLookMs));
        return true;
      });
  for (const std::string& warning : found.warnings)
    log.warning(warning, {{"TF_EVENT", "preflight"}});
  if (found.refusal.ok()) return service::kExitOk;
  log.error(found.refusal.message(), {{"TF_EVENT", "preflight"}});
  return found.refusal.code() == StatusCode::kInvalidArgument ? service::kExitConfig
                                                              : service::kExitUnavailable;
}

int run(CommandLine line, const EngineFactory& make_engine) {
  log::JournalLog log(log::detect_form(2, std::getenv("JOURNAL_STREAM")));
  const auto passed = service::take_passed_socket();
  if (!passed.ok()) {
    log.error(passed.status().message(), {{"TF_EVENT", "config_rejected"}});
    return service::kExitConfig;
  }
  // Its address takes the place of http.listen, for the check that keys are needed off loopback
  // too.
  if (passed->has_value()) line.listen = (*passed)->address;
  const auto loaded = settings_of(line);
  if (!loaded.ok()) {
    log.error(loaded.status().message() + service::kAdviceSettings,
              {{"TF_EVENT", "config_rejected"}});
    return service::kExitConfig;
  }
  log.set_level(log::level_of(loaded->config.log_level));
  for (const std::string& warning : loaded->warnings) log.warning(warning);
  auto start = prepare_start(line, loaded->config);
  if (!start.ok()) {
    log.error(start.status().message() + service::kAdviceSettings,
              {{"TF_EVENT", "config_rejected"}});
    return service::kExitConfig;
  }
  if (const int code = preflight_code(*start, log); code != service::kExitOk) return code;
  if (passed->has_value()) start->listen_fd = (*passed)->fd;
  Daemon daemon(std::move(start).value(), system_clock(), log);
  return daemon.run(make_engine);
}

}  // namespace

int daemon_main(int argc, char** argv, const EngineFactory& make_engine,
                const MemoryPlanner& planner) {
  try {
    const std::vector<std::string> args(argv + 1, argv + argc);
    const auto line = parse_command_line(args);
    if (!line.ok()) {
      std::fprintf(stderr, "tensorfoldd: %s\n       'tensorfoldd --help' lists the options\n",
                   line.status().message().c_str());
      return service::kExitUsage;
    }
    switch (line->action) {
      case CommandLine::Action::kHelp:
        std::fputs(command_help().c_str(), stdout);
        return 0;
      case CommandLine::Action::kVersion:
        std::puts("tensorfoldd " TF_VERSION);
        return 0;
      case CommandLine::Action::kCheckConfig:
        return check_config_main(*line, planner);
      case CommandLine::Action::kRun:
        break;
    }
    return run(*line, make_engine);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "<3>tensorfoldd: unexpected: %s\n", error.what());
    return service::kExitInternal;
  }
}

}  // namespace tensorfold
