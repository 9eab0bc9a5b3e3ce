// What NCCL is told through its environment, as a function of what is set and of the machine. NCCL
// reads its settings once, when the first communicator is made: apply before that, and before
// threads that read the environment.
//
// Chosen for RoCE between machines: interface and RDMA devices by the link's address (never by a
// name or GID index in a file: an index differs between machines and moves after a reboot), both
// rails of a port, RoCE v2, no NVLS. What the user has set stays, except NVLS, and is said. Buffer
// and channel sizes are left to NCCL: none is set here without a measurement. Owner: the main
// thread at start. Deliberately free of NCCL itself.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/log_sink.h"
#include "engine/base/status.h"

namespace tensorfold {

// The machine's side of the link.
struct NcclHost {
  std::string interface;           // that has the link address; empty: none yet
  bool six = false;                // an IPv6 address
  std::vector<std::string> rdma;   // its RDMA device and that device's twin on the same port
  std::vector<std::string> confs;  // files of settings that NCCL reads by itself
};

struct NcclPlan {
  std::vector<std::pair<std::string, std::string>> set;   // name, value
  std::vector<std::string> unset;                         // empty values: NCCL reads them as 0
  std::vector<std::pair<std::string, std::string>> kept;  // set by the user
  std::vector<std::string> warnings;
};

NcclPlan plan_nccl(const std::map<std::string, std::string>& environment, const NcclHost& host);

// Of what the user has set, what must be equal on all ranks ("NCCL_ALGO=Ring NCCL_PROTO=Simple"):
// all but names of a machine's own parts, and what only logs.
std::string nccl_settings(const std::map<std::string, std::string>& environment);

// `root`: "/" but in tests, where sysfs is a folder of files. kNotFound: no interface has it.
Result<NcclHost> find_nccl_host(const std::string& link_address, const std::string& root = "/");
// The same, when the interface is known.
NcclHost nccl_host_of(const std::string& interface, const std::string& root);

// Sets the environment of this process and logs every line of the plan.
void apply_nccl(const NcclPlan& plan, LogSink& log);

}  // namespace tensorfold
