// Findings, the context, and what several checks read: processes, ports, the service's unit.
#include "daemon/preflight/check.h"

#include <algorithm>

#include "daemon/preflight/text.h"

namespace tensorfold::preflight {
namespace {

constexpr std::string_view kListenState = "0A";  // TCP_LISTEN in /proc/net/tcp
constexpr std::string_view kUnit = "tensorfoldd.service";

struct Listener {
  std::string inode;
  bool any = false;      // listens on every address
  uint32_t address = 0;  // IPv4, host order
  bool ipv6 = false;
};

// "0100007F:22B8" has its address in little-endian words.
std::optional<uint32_t> table_address(const std::string& hex) {
  const auto value = to_int(hex, 16);
  if (!value) return std::nullopt;
  return __builtin_bswap32(static_cast<uint32_t>(*value));
}

std::vector<Listener> listeners(const Machine& machine, int64_t port) {
  std::vector<Listener> out;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const auto text = machine.read(table);
    if (!text) continue;
    for (const std::string& row : lines(*text)) {
      const auto fields = words(row);
      if (fields.size() < 10 || fields[3] != kListenState) continue;
      const auto local = split(fields[1], ':');
      if (local.size() != 2 || to_int(local[1], 16) != port) continue;
      Listener one;
      one.inode = fields[9];
      one.ipv6 = local[0].size() > 8;
      one.any = local[0].find_first_not_of('0') == std::string::npos;
      if (!one.ipv6) one.address = table_address(local[0]).value_or(0);
      out.push_back(one);
    }
  }
  return out;
}

bool conflicts(const Listener& listener, const std::string& address) {
  const bool wanted_any = address == "0.0.0.0" || address == "[::]" || address == "*";
  if (listener.any || wanted_any) return true;
  const auto wanted = ipv4(address == "localhost" ? "127.0.0.1" : address);
  return wanted ? !listener.ipv6 && *wanted == listener.address : listener.ipv6;
}

// The links of /proc/PID/fd, as text; a process of another user shows none.
bool holds_socket(const Machine& machine, const std::string& pid, const std::string& inode) {
  const std::string folder = "/proc/" + pid + "/fd", wanted = "socket:[" + inode + "]";
  for (const std::string& name : machine.list(folder)) {
    if (machine.link(concat({folder, "/", name})) == wanted) return true;
  }
  return false;
}

void add_values(const std::string& text, std::string_view key, std::vector<std::string>& out) {
  for (const std::string& raw : lines(text)) {
    const std::string line = trim(raw);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    const size_t equals = line.find('=');
    if (equals == std::string::npos || trim(line.substr(0, equals)) != key) continue;
    out.push_back(trim(line.substr(equals + 1)));
  }
}

bool runs_on_spark(const Machine& machine) {
  for (const char* file : {"/sys/class/dmi/id/product_name", "/sys/class/dmi/id/product_family"}) {
    const std::string name = lower(machine.line(file));
    if (contains(name, "dgx spark") || contains(name, "dgx_spark") || contains(name, "gb10")) {
      return true;
    }
  }
  for (const std::string& gpu : machine.list("/proc/driver/nvidia/gpus")) {
    const auto text = machine.read("/proc/driver/nvidia/gpus/" + gpu + "/information");
    if (text && contains(*text, "GB10")) return true;
  }
  return false;
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kFail:
      return "fail";
    case Verdict::kNotApplicable:
      break;
  }
  return "not applicable";
}

Finding ok(std::string read) { return {Verdict::kOk, std::move(read), "", {}}; }
Finding not_applicable(std::string why) {
  return {Verdict::kNotApplicable, std::move(why), "", {}};
}
Finding unread(bool matters, std::string what) {
  if (!matters) return not_applicable(std::move(what));
  return warn(std::move(what), "Find out why: this check saw nothing.");
}
Finding warn(std::string read, std::string action, std::vector<std::string> commands) {
  return {Verdict::kWarn, std::move(read), std::move(action), std::move(commands)};
}
Finding fail(std::string read, std::string action, std::vector<std::string> commands) {
  return {Verdict::kFail, std::move(read), std::move(action), std::move(commands)};
}

Context make_context(const Machine& machine, const Settings& settings) {
  Context out{machine, settings, false, false, ask_peer(machine, settings.peer)};
  out.spark = runs_on_spark(machine);
  out.published = out.spark || !settings.model_path.empty();
  return out;
}

std::vector<Outcome> run_checks(const Context& context) {
  std::vector<Outcome> out;
  for (const Check& check : check_table()) out.push_back({&check, check.run(context)});
  return out;
}

std::vector<Process> processes(const Machine& machine) {
  std::vector<Process> out;
  for (const std::string& name : machine.list("/proc")) {
    const auto pid = to_int(name);
    if (!pid) continue;
    Process process;
    process.pid = *pid;
    process.name = machine.line("/proc/" + name + "/comm");
    std::string arguments = machine.read("/proc/" + name + "/cmdline").value_or("");
    std::replace(arguments.begin(), arguments.end(), '\0', ' ');
    process.command = trim(arguments);
    const auto fields = words(machine.line("/proc/" + name + "/statm"));
    if (fields.size() > 1) {
      process.resident_bytes = to_int(fields[1]).value_or(0) * machine.page_bytes();
    }
    if (!process.name.empty()) out.push_back(std::move(process));
  }
  return out;
}

bool is_tensorfoldd(const Process& process) { return process.name == "tensorfoldd"; }

std::optional<Process> port_owner(const Machine& machine, const std::string& address,
                                  int64_t port) {
  for (const Listener& listener : listeners(machine, port)) {
    if (!conflicts(listener, address)) continue;
    for (const Process& process : processes(machine)) {
      if (holds_socket(machine, std::to_string(process.pid), listener.inode)) return process;
    }
    return Process{};
  }
  return std::nullopt;
}

UnitValues unit_values(const Machine& machine, std::string_view key) {
  UnitValues out;
  for (const char* folder : {"/etc/systemd/system/", "/run/systemd/system/",
                             "/usr/lib/systemd/system/", "/lib/systemd/system/"}) {
    const auto text = machine.read(folder + std::string(kUnit));
    if (!text) continue;
    out.found = true;
    add_values(*text, key, out.values);
    break;  // the first folder's unit hides the others
  }
  for (const char* folder :
       {"/usr/lib/systemd/system/", "/run/systemd/system/", "/etc/systemd/system/"}) {
    const std::string drop_ins = folder + std::string(kUnit) + ".d";
    for (const std::string& name : machine.list(drop_ins)) {
      if (!name.ends_with(".conf")) continue;
      add_values(machine.read(concat({drop_ins, "/", name})).value_or(""), key, out.values);
    }
  }
  return out;
}

}  // namespace tensorfold::preflight
