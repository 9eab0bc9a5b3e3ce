// Who has a TCP port: from /proc, as far as it can be read. `root` lets tests use a recorded tree.
#pragma once

#include <optional>
#include <string>

namespace tensorfold::service {

struct PortOwner {
  int pid = 0;          // 0: listening, but its process cannot be seen
  std::string program;  // its name, or empty
};

// The process that listens on `port`; nothing if nobody does.
std::optional<PortOwner> find_port_owner(int port, const std::string& root = "");
// "taken by nginx (pid 812)", "taken by another process", or "taken".
std::string describe_port(int port, const std::string& root = "");

}  // namespace tensorfold::service
