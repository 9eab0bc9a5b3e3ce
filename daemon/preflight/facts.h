// What one machine tells another's doctor of itself: facts to compare.
#pragma once

#include <string>
#include <vector>

#include "daemon/preflight/check.h"

namespace tensorfold::preflight {

std::string nccl_version(const Machine& machine);   // "2.28.9", or empty
std::string link_firmware(const Machine& machine);  // of the RDMA devices, or empty

// SHA-256 over the model folder's small files and, of each weight file, name, length and header:
// tells two copies apart without reading hundreds of GB. Empty without a model folder. Not a
// verification: `tfctl model verify` reads contents.
std::string weights_fingerprint(const Machine& machine, const Settings& settings);

// An active port of the link with its address.
struct LinkEnd {
  std::string netdev, address;
  int prefix = 0;
  int64_t mtu = 0;
};
std::vector<LinkEnd> link_ends(const Machine& machine);

// What goes into the document of `tfctl doctor --json` as "machine".
Json machine_json(const Context& context);
std::vector<LinkEnd> link_ends_of(const Json& machine);  // of another machine's document

}  // namespace tensorfold::preflight
