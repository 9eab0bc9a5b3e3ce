// The service itself: settings, ports, limits, other servers.
#include <algorithm>

#include "daemon/preflight/checks.h"
#include "daemon/preflight/text.h"

namespace tensorfold::preflight {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;
constexpr int64_t kOtherServerBytes = 4 * kGib;
constexpr int64_t kOpenFilesLeast = 4096;
constexpr std::string_view kServers[] = {"vllm",       "sglang",       "llama-server",
                                         "llama-swap", "ollama",       "trtllm-serve",
                                         "lmdeploy",   "tritonserver", "text-generation-"};

std::string who(const Process& process) {
  if (process.pid == 0) return "a process of another user";
  return process.name + " (pid " + std::to_string(process.pid) + ")";
}

Finding port_finding(const Context& context, const std::string& address, int64_t port) {
  const auto owner = port_owner(context.machine, address, port);
  const std::string at = address + ":" + std::to_string(port);
  if (!owner) return ok(at + " is free");
  if (is_tensorfoldd(*owner)) return ok(at + " is tensorfoldd's own");
  return fail(at + " is taken by " + who(*owner),
              "End that program, or choose another port in http.listen.",
              {"sudo ss -ltnp 'sport = :" + std::to_string(port) + "'"});
}

struct Limit {
  bool found = false;
  bool unlimited = false;
  int64_t value = 0;
  std::string where;
};

// "Max locked memory         8388608              8388608              bytes"
Limit running_limit(const Machine& machine, std::string_view name) {
  Limit out;
  for (const Process& process : processes(machine)) {
    if (!is_tensorfoldd(process)) continue;
    const std::string file = "/proc/" + std::to_string(process.pid) + "/limits";
    for (const std::string& line : lines(machine.read(file).value_or(""))) {
      if (!starts_with(line, name)) continue;
      const auto fields = words(line.substr(name.size()));
      if (fields.empty()) continue;
      out.found = true;
      out.unlimited = fields[0] == "unlimited";
      out.value = to_int(fields[0]).value_or(0);
      out.where = "tensorfoldd (pid " + std::to_string(process.pid) + ")";
    }
  }
  return out;
}

// "65536", "512M", "infinity", or "soft:hard".
Limit unit_limit(const Machine& machine, std::string_view key) {
  Limit out;
  const UnitValues unit = unit_values(machine, key);
  if (!unit.found || unit.values.empty()) return out;
  std::string value = split(unit.values.back(), ':')[0];
  out.found = true;
  out.where = std::string(key) + " of tensorfoldd.service";
  out.unlimited = value == "infinity";
  int64_t scale = 1;
  if (!value.empty()) {
    const size_t unit_at = std::string_view("KMGT").find(value.back());
    if (unit_at != std::string_view::npos) {
      scale = int64_t{1} << (10 * (unit_at + 1));
      value.pop_back();
    }
  }
  out.value = to_int(value).value_or(0) * scale;
  return out;
}

Finding limit_finding(const Context& context, std::string_view proc_name, std::string_view key,
                      int64_t least, const std::string& action) {
  Limit limit = running_limit(context.machine, proc_name);
  if (!limit.found) limit = unit_limit(context.machine, key);
  if (!limit.found && unit_values(context.machine, key).found) {
    return fail(std::string(key) + " is not set in tensorfoldd.service", action);
  }
  if (!limit.found) return not_applicable("the service is neither running nor installed");
  const std::string read =
      limit.where + ": " + (limit.unlimited ? "unlimited" : std::to_string(limit.value));
  if (limit.unlimited || (least > 0 && limit.value >= least)) return ok(read);
  return fail(read, action, {"sudo systemctl edit tensorfoldd.service"});
}

}  // namespace

Finding check_settings(const Context& context) {
  const Settings& settings = context.settings;
  if (!settings.config_error.empty()) {
    return fail(settings.config_error, "Correct the settings file.",
                {"tensorfoldd --check-config"});
  }
  const std::string model =
      settings.model_path.empty() ? "the embedded model" : settings.model_path;
  if (settings.config_file.empty()) return ok("no settings file: the defaults, " + model);
  return ok(settings.config_file + ": " + model + ", role " + settings.role);
}

Finding check_port(const Context& context) {
  const std::string& listen = context.settings.listen;
  const size_t colon = listen.rfind(':');
  const auto port = colon == std::string::npos ? std::nullopt : to_int(listen.substr(colon + 1));
  if (!port) return fail("http.listen is '" + listen + "'", "Write ADDRESS:PORT.");
  Finding finding = port_finding(context, listen.substr(0, colon), *port);
  const Settings& settings = context.settings;
  if (finding.verdict != Verdict::kOk || settings.role != "head") return finding;
  const std::string link = settings.link_address.empty() ? "0.0.0.0" : settings.link_address;
  Finding second = port_finding(context, link, settings.link_port);
  second.read = finding.read + "; " + second.read;
  return second;
}

Finding check_other_servers(const Context& context) {
  std::vector<std::string> seen;
  bool large = false;
  for (const Process& process : processes(context.machine)) {
    const std::string command = lower(process.name + " " + process.command);
    const bool server = std::any_of(std::begin(kServers), std::end(kServers),
                                    [&](std::string_view name) { return contains(command, name); });
    if (!server || is_tensorfoldd(process) || process.name == "tfctl") continue;
    large = large || process.resident_bytes >= kOtherServerBytes;
    seen.push_back(who(process));
  }
  if (seen.empty()) return ok("none is seen");
  const std::string action = "Stop it first: only one model fits.";
  return large && context.spark ? fail(join(seen, ", "), action) : warn(join(seen, ", "), action);
}

Finding check_memlock(const Context& context) {
  return limit_finding(context, "Max locked memory", "LimitMEMLOCK", 0,
                       "Set LimitMEMLOCK=infinity in the unit; limits.conf does not count for "
                       "services.");
}

Finding check_open_files(const Context& context) {
  return limit_finding(context, "Max open files", "LimitNOFILE", kOpenFilesLeast,
                       "Set LimitNOFILE=65536 in the unit.");
}

Finding check_oom_score(const Context& context) {
  if (!context.spark) return not_applicable("not a DGX Spark");
  for (const Process& process : processes(context.machine)) {
    if (!is_tensorfoldd(process)) continue;
    const auto score =
        to_int(context.machine.line("/proc/" + std::to_string(process.pid) + "/oom_score_adj"));
    if (!score) break;
    const std::string read = "oom_score_adj " + std::to_string(*score);
    if (*score >= 1000) return ok(read);
    return warn(read, "Set OOMScoreAdjust=1000 for the service on this machine.",
                {"sudo systemctl edit tensorfoldd.service"});
  }
  return not_applicable("tensorfoldd does not run");
}

}  // namespace tensorfold::preflight
