// NCCL's settings. Owner: see the header. Deliberately without a probe of the network.
#include "engine/cluster/nccl_environment.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "engine/cluster/link_address.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ",") + name;
  return out;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

struct RdmaDevice {
  std::string name;
  std::string slot;  // PCI address without its domain: "01:00.1"
  std::vector<std::string> interfaces;
  bool active = false;
};

// A symbolic link to the PCI device; its last part is its address, "0002:01:00.1".
std::string slot_of(const fs::path& device) {
  std::error_code error;
  const fs::path target = fs::read_symlink(device / "device", error);
  const std::string address = target.filename().string();
  const size_t colon = address.find(':');
  return error || colon == std::string::npos ? std::string() : address.substr(colon + 1);
}

std::vector<RdmaDevice> rdma_devices(const std::string& root) {
  std::vector<RdmaDevice> out;
  for (const fs::path& path : entries(fs::path(root) / "sys/class/infiniband")) {
    RdmaDevice device;
    device.name = path.filename().string();
    device.slot = slot_of(path);
    for (const fs::path& net : entries(path / "device/net"))
      device.interfaces.push_back(net.filename().string());
    std::ifstream state(path / "ports/1/state");
    std::string line;
    std::getline(state, line);
    device.active = line.find("ACTIVE") != std::string::npos;
    out.push_back(std::move(device));
  }
  return out;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

NcclHost nccl_host_of(const std::string& interface, const std::string& root) {
  NcclHost host;
  host.interface = interface;
  const std::vector<RdmaDevice> devices = rdma_devices(root);
  for (const RdmaDevice& own : devices) {
    if (!has(own.interfaces, interface)) continue;
    host.rdma.push_back(own.name);
    // One port of the network card is two PCI functions in two domains, each with half its rate.
    for (const RdmaDevice& twin : devices) {
      if (twin.name != own.name && twin.active && !own.slot.empty() && twin.slot == own.slot)
        host.rdma.push_back(twin.name);
    }
    break;
  }
  std::vector<std::string> confs = {"etc/nccl.conf"};
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    confs.push_back(std::string(home + 1) + "/.nccl.conf");
  for (const std::string& conf : confs) {
    std::error_code error;
    if (fs::exists(fs::path(root) / conf, error)) host.confs.push_back("/" + conf);
  }
  return host;
}

Result<NcclHost> find_nccl_host(const std::string& link_address, const std::string& root) {
  TF_ASSIGN_OR_RETURN(const LinkAddress wanted,
                      LinkAddress::parse("cluster.link_address", link_address, 0));
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return io_error("getifaddrs", errno);
  std::string found;
  for (const ifaddrs* i = all; i != nullptr && found.empty(); i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != wanted.raw()->sa_family) continue;
    char host[NI_MAXHOST] = "";
    const socklen_t length =
        i->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (::getnameinfo(i->ifa_addr, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0 &&
        wanted.host() == host) {
      found = i->ifa_name;
    }
  }
  ::freeifaddrs(all);
  if (found.empty())
    return Status(StatusCode::kNotFound, "no interface has the address " + link_address);
  NcclHost host = nccl_host_of(found, root);
  host.six = wanted.raw()->sa_family == AF_INET6;
  return host;
}

NcclPlan plan_nccl(const std::map<std::string, std::string>& environment, const NcclHost& host) {
  NcclPlan plan;
  std::map<std::string, std::string> user;
  for (const auto& [name, value] : environment) {
    if (!name.starts_with("NCCL_")) continue;
    if (value.empty()) {
      plan.unset.push_back(name);
      plan.warnings.push_back(name + " is set to nothing, which NCCL reads as 0: removed");
    } else if (name != "NCCL_NVLS_ENABLE") {
      user.emplace(name, value);
      plan.kept.emplace_back(name, value);
    }
  }
  const auto choose = [&](const std::string& name, const std::string& value) {
    if (!user.contains(name)) plan.set.emplace_back(name, value);
  };
  const auto nvls = environment.find("NCCL_NVLS_ENABLE");
  if (nvls != environment.end() && !nvls->second.empty() && nvls->second != "0")
    plan.warnings.push_back("NCCL_NVLS_ENABLE=" + nvls->second + " is not supported: set to 0");
  plan.set.emplace_back("NCCL_NVLS_ENABLE", "0");
  if (!host.interface.empty()) {
    choose("NCCL_SOCKET_IFNAME", "=" + host.interface);
    choose("NCCL_SOCKET_FAMILY", host.six ? "AF_INET6" : "AF_INET");
  }
  if (user.contains("NCCL_IB_GID_INDEX")) {
    plan.warnings.push_back(
        "NCCL_IB_GID_INDEX=" + user["NCCL_IB_GID_INDEX"] +
        " is fixed: indexes differ between machines and move after a link was down; better unset");
  }
  if (host.rdma.empty()) return plan;
  choose("NCCL_IB_HCA", "=" + joined(host.rdma));
  choose("NCCL_IB_ROCE_VERSION_NUM", "2");
  choose("NCCL_IB_ADDR_FAMILY", host.six ? "AF_INET6" : "AF_INET");
  if (const auto hca = user.find("NCCL_IB_HCA"); hca != user.end()) {
    for (const std::string& name : host.rdma) {
      if (hca->second.find(name) == std::string::npos)
        plan.warnings.push_back("NCCL_IB_HCA=" + hca->second + " leaves out " + name +
                                ": both rails are =" + joined(host.rdma));
    }
  }
  for (const std::string& conf : host.confs)
    plan.warnings.push_back(conf + " is there, and NCCL reads it too");
  return plan;
}

std::string nccl_settings(const std::map<std::string, std::string>& environment) {
  constexpr std::array<std::string_view, 11> kOwn = {
      "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA",    "NCCL_IB_GID_INDEX",  "NCCL_IB_ADDR_RANGE",
      "NCCL_DEBUG",         "NCCL_CONF_FILE", "NCCL_DEBUG_FILE",    "NCCL_DEBUG_SUBSYS",
      "NCCL_TOPO_FILE",     "NCCL_HOSTID",    "NCCL_TOPO_DUMP_FILE"};
  std::string out;
  for (const auto& [name, value] : environment) {
    if (!name.starts_with("NCCL_") || value.empty()) continue;
    if (std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end()) continue;
    if (!out.empty()) out.push_back(' ');
    out.append(name).append("=").append(value);
  }
  return out;
}

void apply_nccl(const NcclPlan& plan, LogSink& log) {
  for (const std::string& name : plan.unset) (void)::unsetenv(name.c_str());
  const auto line = [](const std::string& name, const std::string& value) {
    return std::string("nccl: ").append(name).append("=").append(value);
  };
  for (const auto& [name, value] : plan.set) {
    (void)::setenv(name.c_str(), value.c_str(), 1);
    log.info(line(name, value));
  }
  for (const auto& [name, value] : plan.kept) log.info(line(name, value).append(" (kept)"));
  for (const std::string& warning : plan.warnings) log.warning("nccl: " + warning);
}

}  // namespace tensorfold
