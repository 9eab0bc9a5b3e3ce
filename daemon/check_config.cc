// See the header.
#include "daemon/check_config.h"

#include <cstdio>
#include <string>

#include "daemon/service/exit_code.h"
#include "daemon/service/gpu_kind.h"
#include "daemon/start.h"

namespace tensorfold {
namespace {

// Whether the model would live in the machine's own memory.
bool shares_memory(const std::string& device) {
  const service::GpuKind gpu = service::gpu_kind();
  return device == "cpu" || gpu == service::GpuKind::kGb10 ||
         (device == "auto" && gpu == service::GpuKind::kNone);
}

void warn(const std::string& text) { std::fprintf(stderr, "warning: %s\n", text.c_str()); }

int refuse(const Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return service::kExitConfig;
}

// The settings are right by themselves: what would a start with them meet?
int tell_memory(const CommandLine& line, const config::Config& config,
                const MemoryPlanner& planner) {
  const auto start = prepare_start(line, config);
  if (!start.ok()) {
    warn("a start would fail: " + start.status().message());
    return service::kExitOk;
  }
  const auto planned = planner(start->engine, shares_memory(start->engine.device));
  if (!planned.ok()) {
    if (planned.status().code() == StatusCode::kInvalidArgument) return refuse(planned.status());
    warn("a start would fail: " + planned.status().message());
    return service::kExitOk;
  }
  for (const std::string& text : planned->lines) std::printf("%s\n", text.c_str());
  if (planned->fits.code() == StatusCode::kInvalidArgument) return refuse(planned->fits);
  if (!planned->fits.ok()) warn("a start would fail now: " + planned->fits.message());
  return service::kExitOk;
}

}  // namespace

int check_config_main(const CommandLine& line, const MemoryPlanner& planner) {
  const auto loaded = settings_of(line);
  if (!loaded.ok()) return refuse(loaded.status());
  for (const std::string& warning : loaded->warnings) warn(warning);
  if (planner) {
    if (const int code = tell_memory(line, loaded->config, planner); code != service::kExitOk)
      return code;
  }
  std::printf("the settings are right\n");
  return service::kExitOk;
}

}  // namespace tensorfold
