#include "daemon/preflight/startup.h"

#include <algorithm>
#include <string_view>

namespace tensorfold::preflight {
namespace {

enum class OnFail : unsigned char {
  kWarn,
  kRefuseInCluster,  // memory for RDMA can't be registered: the same after a restart
  kRefuseWithGpu,    // there is no GPU to use yet
  kRefuseForMemory,  // somebody else has the memory
};

struct StartCheck {
  std::string_view name;
  OnFail on_fail;
};

constexpr StartCheck kStartChecks[] = {
    {"kernel", OnFail::kRefuseInCluster},
    {"cma", OnFail::kRefuseInCluster},
    {"memory", OnFail::kRefuseForMemory},
    {"swap", OnFail::kWarn},
    {"huge-pages", OnFail::kWarn},
    {"fragmentation", OnFail::kWarn},
    {"memory-killers", OnFail::kWarn},
    {"driver", OnFail::kRefuseWithGpu},
    {"gpu-nodes", OnFail::kRefuseWithGpu},
    {"display", OnFail::kWarn},
    {"other-servers", OnFail::kWarn},
    {"memlock", OnFail::kWarn},
    {"open-files", OnFail::kWarn},
    {"oom-score", OnFail::kWarn},
    {"disk-kind", OnFail::kWarn},
    {"rdma-ports", OnFail::kWarn},
    {"rdma-gids", OnFail::kWarn},
    {"rdma-memory", OnFail::kRefuseInCluster},
    {"mtu", OnFail::kWarn},
    {"rails", OnFail::kWarn},
    {"link-apart", OnFail::kWarn},
    {"nccl-environment", OnFail::kWarn},
    {"nccl-file", OnFail::kWarn},
    {"firewall", OnFail::kWarn},
};

Status refusal_of(const Context& context, OnFail on_fail, const std::string& line) {
  const Settings& settings = context.settings;
  const bool gpu = settings.device != "cpu";
  switch (on_fail) {
    case OnFail::kWarn:
      break;
    case OnFail::kRefuseInCluster:
      if (gpu && settings.role != "single") return invalid_argument(line);
      break;
    case OnFail::kRefuseWithGpu:
      // The driver and its nodes may come a moment after the boot. On a Spark a model of a folder
      // never falls back to the CPU.
      if (settings.device.rfind("cuda", 0) == 0 ||
          (gpu && context.spark && !settings.model_path.empty())) {
        return unavailable(line);
      }
      break;
    case OnFail::kRefuseForMemory:
      if (gpu && context.spark) return unavailable(line);
      break;
  }
  return ok_status();
}

}  // namespace

std::vector<std::string_view> startup_checks() {
  std::vector<std::string_view> out;
  for (const StartCheck& check : kStartChecks) out.push_back(check.name);
  return out;
}

StartupFindings check_startup(const Machine& machine, const Settings& settings) {
  StartupFindings out;
  Settings alone = settings;
  alone.peer.clear();  // nobody is asked
  const Context context = make_context(machine, alone);
  // A CPU engine needs none of this.
  const bool gpu = context.spark || machine.exists("/proc/driver/nvidia") ||
                   settings.device.rfind("cuda", 0) == 0;
  if (!context.published || !gpu || settings.device == "cpu") return out;
  for (const Check& check : check_table()) {
    const auto it = std::find_if(std::begin(kStartChecks), std::end(kStartChecks),
                                 [&](const StartCheck& s) { return s.name == check.name; });
    if (it == std::end(kStartChecks)) continue;
    const Finding finding = check.run(context);
    if (finding.verdict != Verdict::kWarn && finding.verdict != Verdict::kFail) continue;
    const std::string line =
        "preflight " + std::string(check.name) + ": " + finding.read + ". " + finding.action;
    if (finding.verdict == Verdict::kFail && out.refusal.ok()) {
      out.refusal = refusal_of(context, it->on_fail, line);
      out.may_appear = !out.refusal.ok() && it->on_fail == OnFail::kRefuseWithGpu;
      if (!out.refusal.ok()) continue;
    }
    out.warnings.push_back(line);
  }
  return out;
}

StartupFindings await_startup(const Machine& machine, const Settings& settings,
                              const std::function<bool(const std::string&)>& pause) {
  StartupFindings out = check_startup(machine, settings);
  for (int64_t waited_ms = 0; out.may_appear && waited_ms < kDeviceWaitMs;
       waited_ms += kDeviceLookMs) {
    if (!pause(out.refusal.message())) break;
    out = check_startup(machine, settings);
  }
  return out;
}

}  // namespace tensorfold::preflight
