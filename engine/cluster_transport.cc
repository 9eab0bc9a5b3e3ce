// See the header.
#include "engine/cluster_transport.h"

#include <unistd.h>

#include <map>

#include "engine/cluster/nccl/nccl_collective.h"
#include "engine/cluster/nccl_environment.h"

extern char** environ;

namespace tensorfold {
namespace {

constexpr const char* kGpuNode = "/dev/nvidiactl";

std::map<std::string, std::string> environment() {
  std::map<std::string, std::string> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) out.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return out;
}

// As far as it can be told before the device is opened.
bool may_use_nccl(const EngineOptions& options) {
  if (options.cluster.role == ClusterOptions::Role::kSingle) return false;
  if (options.cluster.transport == "sockets" || options.device == "cpu") return false;
  return options.device.starts_with("cuda") || ::access(kGpuNode, F_OK) == 0;
}

}  // namespace

void prepare_transport(const EngineOptions& options, LogSink& log) {
  if (!may_use_nccl(options)) return;
  const auto host = find_nccl_host(options.cluster.link_address);
  if (!host.ok())
    log.warning("nccl: " + host.status().message() + " yet: NCCL looks for an interface by itself");
  apply_nccl(plan_nccl(environment(), host.ok() ? *host : NcclHost{}), log);
}

Result<TransportChoice> choose_transport(const EngineOptions& options, Device& device) {
  const std::string& wanted = options.cluster.transport;
  const bool nccl = wanted == "nccl" || (wanted != "sockets" && !device.host_memory());
  TransportChoice out;
  out.fingerprint.emplace_back("transport", nccl ? "nccl" : "sockets");
  if (!nccl) {
    out.transport = make_socket_transport();
    return out;
  }
  if (device.host_memory())
    return invalid_argument("cluster.transport is nccl, but the model runs on " +
                                std::string(device.name()) + "; use auto or sockets",
                            "cluster.transport");
  auto library = open_nccl();
  if (!library.ok())
    return unavailable(library.status().message() +
                       "; ranks on GPUs exchange by it unless cluster.transport is sockets");
  out.fingerprint.emplace_back("NCCL library", (*library)->identity);
  out.fingerprint.emplace_back("NCCL settings",
                               nccl_settings(environment()).substr(0, kLinkValueBytesMax));
  out.transport =
      make_nccl_transport(*std::move(library), [&device] { return device.make_exchange_lane(); });
  return out;
}

}  // namespace tensorfold
