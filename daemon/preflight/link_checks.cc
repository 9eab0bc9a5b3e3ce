// The link between two machines: RDMA ports, GIDs, MTU, both functions of one socket, subnets.
#include "daemon/preflight/link.h"

#include "daemon/preflight/checks.h"
#include "daemon/preflight/text.h"

namespace tensorfold::preflight {
namespace {

constexpr int64_t kMtuLeast = 9000;
constexpr int64_t kRdmaMtuLeast = 4096;
constexpr const char* kRdmaFolder = "/sys/class/infiniband";
constexpr std::string_view kMappedPrefix = "0000:0000:0000:0000:0000:ffff:";

// "0000:0000:0000:0000:0000:ffff:c0a8:6401" -> "192.168.100.1"; anything else -> "".
std::string mapped_address(const std::string& gid) {
  if (!starts_with(lower(gid), kMappedPrefix)) return "";
  std::string out;
  for (const std::string& part : split(gid.substr(kMappedPrefix.size()), ':')) {
    const auto value = to_int(part, 16);
    if (!value) return "";
    if (!out.empty()) out += ".";
    out += std::to_string(*value >> 8) + "." + std::to_string(*value & 255);
  }
  return out;
}

RdmaPort read_port(const Machine& machine, const std::string& device) {
  const std::string folder = std::string(kRdmaFolder) + "/" + device;
  RdmaPort port;
  port.device = device;
  const std::string state = machine.line(folder + "/ports/1/state");  // "4: ACTIVE"
  port.state = trim(state.substr(state.find(':') + 1));
  const auto netdevs = machine.list(folder + "/device/net");
  if (!netdevs.empty()) port.netdev = netdevs.front();
  for (const std::string& line : lines(machine.read(folder + "/device/uevent").value_or("")))
    if (starts_with(line, "PCI_SLOT_NAME=")) port.pci = trim(line.substr(14));
  const std::string gids = folder + "/ports/1/gids/", types = folder + "/ports/1/gid_attrs/types/",
                    netdev_names = folder + "/ports/1/gid_attrs/ndevs/";
  for (const std::string& index : machine.list(gids)) {
    Gid gid;
    gid.index = static_cast<int>(to_int(index).value_or(-1));
    gid.address = mapped_address(machine.line(gids + index));
    gid.type = machine.line(types + index);
    gid.netdev = machine.line(netdev_names + index);
    if (!gid.type.empty()) port.gids.push_back(gid);
  }
  return port;
}

const Gid* usable_gid(const RdmaPort& port) {
  for (const Gid& gid : port.gids)
    if (!gid.address.empty() && gid.type == "RoCE v2") return &gid;
  return nullptr;
}

std::vector<RdmaPort> active_ports(const Machine& machine) {
  std::vector<RdmaPort> out;
  for (const RdmaPort& port : rdma_ports(machine))
    if (port.active()) out.push_back(port);
  return out;
}

// A machine of a cluster must have the link; a Spark by itself may do without.
bool link_wanted(const Context& context) {
  return context.settings.role != "single" || !context.settings.peer.empty();
}

std::string default_route_interface(const Machine& machine) {
  for (const std::string& row : lines(machine.read("/proc/net/route").value_or(""))) {
    const auto fields = words(row);
    if (fields.size() > 7 && fields[1] == "00000000" && fields[7] == "00000000") return fields[0];
  }
  return "";
}

}  // namespace

std::vector<RdmaPort> rdma_ports(const Machine& machine) {
  std::vector<RdmaPort> out;
  for (const std::string& device : machine.list(kRdmaFolder)) {
    out.push_back(read_port(machine, device));
  }
  return out;
}

bool twins(const RdmaPort& a, const RdmaPort& b) {
  const size_t colon_a = a.pci.find(':'), colon_b = b.pci.find(':');
  if (colon_a == std::string::npos || colon_b == std::string::npos) return false;
  return a.pci != b.pci && a.pci.substr(colon_a) == b.pci.substr(colon_b);
}

Finding check_rdma_ports(const Context& context) {
  const auto ports = rdma_ports(context.machine);
  if (ports.empty()) {
    if (!link_wanted(context)) return not_applicable("no RDMA device");
    return fail("no RDMA device in /sys/class/infiniband", "Load the driver of the network card.",
                {"sudo modprobe mlx5_ib"});
  }
  std::vector<std::string> seen;
  seen.reserve(ports.size());
  for (const RdmaPort& port : ports) seen.push_back(port.device + " " + port.state);
  const std::string read = join(seen, ", ");
  if (!active_ports(context.machine).empty()) return ok(read);
  if (!link_wanted(context)) return not_applicable(read + "; no cluster is set up");
  return fail(read + ": none is ACTIVE", "Check the cable and bring the interfaces up.",
              {"ip -br link"});
}

Finding check_rdma_gids(const Context& context) {
  const auto ports = active_ports(context.machine);
  if (ports.empty()) return not_applicable("no active RDMA port");
  std::vector<std::string> good, bad;
  bool link_found = false;
  for (const RdmaPort& port : ports) {
    const Gid* gid = usable_gid(port);
    if (gid == nullptr) {
      bad.push_back(port.device);
      continue;
    }
    link_found = link_found || gid->address == context.settings.link_address;
    good.push_back(port.device + " " + gid->address + " (index " + std::to_string(gid->index) +
                   ")");
  }
  const std::string& link = context.settings.link_address;
  if (!link.empty() && !link_found) {
    return fail("no RoCE v2 GID has cluster.link_address " + link +
                    "; there are: " + (good.empty() ? "none" : join(good, ", ")),
                "Give the link's interface that address, or correct cluster.link_address.",
                {"ip -br -4 addr"});
  }
  if (bad.empty()) return ok(join(good, ", "));
  const std::string read = "no RoCE v2 GID with an IPv4 address: " + join(bad, ", ") +
                           (good.empty() ? "" : "; good: " + join(good, ", "));
  const std::string action = "Give each interface of the link an IPv4 address.";
  return good.empty() && link_wanted(context) ? fail(read, action) : warn(read, action);
}

Finding check_rdma_memory(const Context& context) {
  if (active_ports(context.machine).empty()) return not_applicable("no active RDMA port");
  std::vector<std::string> good, bad;
  for (const RdmaPort& port : active_ports(context.machine)) {
    const auto trial = context.machine.register_memory(port.device);
    if (!trial) continue;
    if (trial->refused_bytes > 0) {
      bad.push_back(
          concat({port.device, ": ", bytes_text(trial->refused_bytes), ": ", trial->problem}));
      continue;
    }
    good.push_back(port.device + " " + bytes_text(trial->registered_bytes));
    if (trial->limit_bytes > 0) {
      good.back() += " (this user may lock " + bytes_text(trial->limit_bytes) + ")";
    }
  }
  if (good.empty() && bad.empty()) {
    return unread(link_wanted(context), "libibverbs is not there to try it (package libibverbs1)");
  }
  if (bad.empty()) return ok("registered: " + join(good, ", "));
  return fail("cannot be registered: " + join(bad, "; "),
              "Boot a kernel that registers memory (see kernel and cma), or with kho=off; if only "
              "large sizes fail, free memory and look at memlock.",
              {"grep -i cma /proc/meminfo", "uname -r"});
}

Finding check_mtu(const Context& context) {
  std::vector<std::string> seen, low, commands;
  for (const RdmaPort& port : active_ports(context.machine)) {
    if (port.netdev.empty()) continue;
    const auto mtu = to_int(context.machine.line("/sys/class/net/" + port.netdev + "/mtu"));
    if (!mtu) return unread(context.published, "the MTU of " + port.netdev + " cannot be read");
    seen.push_back(port.netdev + " " + std::to_string(*mtu));
    if (*mtu >= kMtuLeast) continue;
    low.push_back(seen.back());
    commands.push_back("sudo ip link set dev " + port.netdev + " mtu 9000");
  }
  if (seen.empty()) return not_applicable("no active RDMA port with an interface");
  if (low.empty()) return ok(join(seen, ", "));
  return warn(
      join(seen, ", "),
      "Set MTU 9000 on both machines and in netplan; large transfers fail when they differ.",
      commands);
}

Finding check_rdma_mtu(const Context& context) {
  if (active_ports(context.machine).empty()) return not_applicable("no active RDMA port");
  const auto result = context.machine.command({"ibv_devinfo"});
  if (!result || result->exit_code != 0) {
    return unread(context.published, "ibv_devinfo does not answer (package ibverbs-utils)");
  }
  std::vector<std::string> seen, low;
  std::string device, state;
  for (const std::string& line : lines(result->output)) {
    const auto fields = words(line);
    if (fields.size() < 2) continue;
    if (fields[0] == "hca_id:") device = fields[1];
    if (fields[0] == "state:") state = fields[1];
    if (fields[0] != "active_mtu:" || state != "PORT_ACTIVE") continue;
    seen.push_back(device + " " + fields[1]);
    if (to_int(fields[1]).value_or(0) < kRdmaMtuLeast) low.push_back(seen.back());
  }
  if (seen.empty()) return unread(context.published, "ibv_devinfo shows no active port");
  if (low.empty()) return ok(join(seen, ", "));
  return warn("active_mtu " + join(seen, ", "),
              "Raise the Ethernet MTU to 9000 on both machines: active_mtu 1024 cost 40% of "
              "prefill speed.");
}

Finding check_rails(const Context& context) {
  const auto ports = rdma_ports(context.machine);
  std::vector<std::string> pairs, half, same;
  for (size_t i = 0; i < ports.size(); ++i) {
    for (size_t j = i + 1; j < ports.size(); ++j) {
      const RdmaPort &a = ports[i], &b = ports[j];
      if (!twins(a, b) || (!a.active() && !b.active())) continue;
      const std::string pair = a.device + " + " + b.device;
      pairs.push_back(pair);
      if (!a.active() || !b.active()) half.push_back(a.active() ? b.device : a.device);
      for (const Interface& x : context.machine.interfaces())
        for (const Interface& y : context.machine.interfaces()) {
          const auto left = ipv4(x.address), right = ipv4(y.address);
          if (x.name == a.netdev && y.name == b.netdev && left && right &&
              same_subnet(*left, *right, x.prefix)) {
            same.push_back(x.address + " and " + y.address);
          }
        }
    }
  }
  if (pairs.empty()) return not_applicable("no active socket with two functions");
  if (!half.empty()) {
    return warn(join(half, ", ") + " is not up (pair " + join(pairs, ", ") + ")",
                "Bring both functions of the socket up: one carries half of the bandwidth.",
                {"ip -br link"});
  }
  if (!same.empty()) {
    return warn(join(pairs, ", ") + " are in one subnet: " + join(same, ", "),
                "Give each of the two functions a subnet of its own.");
  }
  return ok(join(pairs, ", ") + ", both up");
}

Finding check_link_apart(const Context& context) {
  const auto ports = active_ports(context.machine);
  if (ports.empty()) return not_applicable("no active RDMA port");
  const std::string route = default_route_interface(context.machine);
  if (route.empty()) return ok("no default route: nothing else uses the link");
  for (const RdmaPort& port : ports) {
    if (port.netdev == route) {
      return warn("the default route goes over " + route + ", a port of the link",
                  "Keep the management network apart from the link between the machines.");
    }
  }
  return ok("the default route goes over " + route);
}

}  // namespace tensorfold::preflight
