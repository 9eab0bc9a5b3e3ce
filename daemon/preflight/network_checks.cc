// NCCL's own settings and the firewall.
#include "daemon/preflight/checks.h"
#include "daemon/preflight/link.h"
#include "daemon/preflight/text.h"

namespace tensorfold::preflight {
namespace {

constexpr const char* kNcclFile = "/etc/nccl.conf";
constexpr const char* kNcclServiceFile = "/var/lib/tensorfoldd/.nccl.conf";

// Environment= of a unit may hold several assignments, each perhaps in quotes.
std::vector<std::string> assignments(const std::string& value) {
  std::vector<std::string> out;
  std::string current;
  char quote = 0;
  for (const char c : value) {
    if (quote != 0 && c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (quote == 0 && c == ' ') {
      if (!current.empty()) out.push_back(std::move(current));
      current.clear();
    } else {
      current += c;
    }
  }
  if (!current.empty()) out.push_back(std::move(current));
  return out;
}

// NCCL_* of the running service, else of its unit; and of the caller, who may start it by hand.
std::vector<std::string> nccl_variables(const Machine& machine) {
  std::vector<std::string> all;
  bool running = false;
  for (const Process& process : processes(machine)) {
    if (!is_tensorfoldd(process)) continue;
    const auto text = machine.read("/proc/" + std::to_string(process.pid) + "/environ");
    if (!text) continue;
    running = true;
    for (const std::string& entry : split(*text, '\0')) all.push_back(entry);
  }
  if (!running) {
    for (const std::string& value : unit_values(machine, "Environment").values) {
      for (const std::string& one : assignments(value)) all.push_back(one);
    }
    for (const std::string& entry : machine.environment()) all.push_back(entry);
  }
  std::vector<std::string> out;
  for (const std::string& entry : all)
    if (starts_with(entry, "NCCL_")) out.push_back(entry);
  return out;
}

// NCCL_IB_HCA that names one function of a pair only: the other one's name, or empty.
std::string missing_twin(const Machine& machine, const std::string& value) {
  const auto ports = rdma_ports(machine);
  for (const RdmaPort& a : ports)
    for (const RdmaPort& b : ports)
      if (twins(a, b) && contains(value, a.device) && !contains(value, b.device)) return b.device;
  return "";
}

bool ufw_enabled(const Machine& machine) {
  for (const std::string& line : lines(machine.read("/etc/ufw/ufw.conf").value_or("")))
    if (lower(trim(line)) == "enabled=yes") return true;
  return false;
}

// "### tuple ### allow any any 0.0.0.0/0 any 192.168.100.0/24 in": does a rule let all of the
// subnet in, by its source or by the interface ("in_enp1s0f0np0")?
bool ufw_allows(const Machine& machine, const Interface& link) {
  const auto address = ipv4(link.address);
  for (const std::string& line : lines(machine.read("/etc/ufw/user.rules").value_or(""))) {
    const auto fields = words(line);  // ### tuple ### action proto dport dst sport src direction
    if (fields.size() < 10 || fields[1] != "tuple" || fields[3] != "allow") continue;
    if (fields[5] != "any") continue;
    if (fields[9] == "in_" + link.name) return true;
    const auto source = split(fields[8], '/');
    const auto network = ipv4(source[0]);
    const auto bits = source.size() == 2 ? to_int(source[1]) : std::optional<int64_t>(32);
    if (!network || !bits || !address || fields[9] != "in") continue;
    if (*bits <= link.prefix && same_subnet(*network, *address, static_cast<int>(*bits))) {
      return true;
    }
  }
  return false;
}

}  // namespace

Finding check_nccl_environment(const Context& context) {
  std::vector<std::string> problems, names;
  for (const std::string& entry : nccl_variables(context.machine)) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals), value = entry.substr(equals + 1);
    names.push_back(entry);
    if (value.empty()) {
      problems.push_back(name + " is empty, which NCCL reads as 0");
    } else if (name == "NCCL_IB_GID_INDEX") {
      problems.push_back(entry + " pins an index that moves");
    } else if (name == "NCCL_IB_HCA") {
      const std::string twin = missing_twin(context.machine, value);
      if (!twin.empty()) problems.push_back(concat({entry, " leaves out ", twin}));
    }
  }
  if (names.empty()) return ok("no NCCL_* variable is set");
  if (problems.empty()) return ok(join(names, ", "));
  return warn(join(problems, "; "), "Take them out of the unit, its drop-ins and the shell.",
              {"systemctl cat tensorfoldd.service | grep NCCL_"});
}

Finding check_nccl_file(const Context& context) {
  std::vector<std::string> found, files = {kNcclFile, kNcclServiceFile};
  for (const std::string& entry : context.machine.environment())
    if (starts_with(entry, "HOME=/")) files.push_back(entry.substr(5) + "/.nccl.conf");
  for (const std::string& file : files) {
    const auto text = context.machine.read(file);
    if (!text) continue;
    std::vector<std::string> settings;
    for (const std::string& raw : lines(*text)) {
      const std::string line = trim(raw);
      if (!line.empty() && line[0] != '#') settings.push_back(line);
    }
    if (!settings.empty()) found.push_back(file + ": " + join(settings, " "));
  }
  if (found.empty()) return ok("no nccl.conf");
  return warn(join(found, "; "), "Move the file away: NCCL reads it without saying so.");
}

Finding check_firewall(const Context& context) {
  std::vector<std::string> closed, commands, open;
  if (!ufw_enabled(context.machine)) {
    for (const Process& process : processes(context.machine))
      if (process.name == "firewalld" || contains(process.command, "/firewalld")) {
        return warn("firewalld runs; its rules are not read",
                    "Put the interfaces of the link into the zone 'trusted'.");
      }
    return ok("ufw is off");
  }
  for (const RdmaPort& port : rdma_ports(context.machine)) {
    if (!port.active()) continue;
    for (const Interface& interface : context.machine.interfaces()) {
      if (interface.name != port.netdev) continue;
      if (ufw_allows(context.machine, interface)) {
        open.push_back(interface.name);
        continue;
      }
      closed.push_back(interface.name + " (" + interface.address + "/" +
                       std::to_string(interface.prefix) + ")");
      commands.push_back("sudo ufw allow in on " + interface.name);
    }
  }
  if (!closed.empty()) {
    return warn("ufw is on and no rule opens " + join(closed, ", "),
                "Allow everything on the link: connections use changing ports.", commands);
  }
  if (open.empty()) return not_applicable("ufw is on; there is no link");
  return ok("ufw is on and open on " + join(open, ", "));
}

}  // namespace tensorfold::preflight
