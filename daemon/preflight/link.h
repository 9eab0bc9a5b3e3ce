// What /sys/class/infiniband says of the link between two machines.
#pragma once

#include <string>
#include <vector>

#include "daemon/preflight/machine.h"

namespace tensorfold::preflight {

struct Gid {
  int index = 0;
  std::string address;  // IPv4 of an IPv4-mapped GID, or empty
  std::string type;     // "RoCE v2"
  std::string netdev;
};

struct RdmaPort {
  std::string device;  // "rocep1s0f0"
  std::string netdev;  // "enp1s0f0np0", or empty
  std::string pci;     // "0000:01:00.0", or empty
  std::string state;   // "ACTIVE"
  std::vector<Gid> gids;
  bool active() const { return state == "ACTIVE"; }
};

std::vector<RdmaPort> rdma_ports(const Machine& machine);
// Two functions of one socket differ only in their PCI domain.
bool twins(const RdmaPort& a, const RdmaPort& b);

}  // namespace tensorfold::preflight
