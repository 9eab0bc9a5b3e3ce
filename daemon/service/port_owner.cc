#include "daemon/service/port_owner.h"

#include <dirent.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

namespace tensorfold::service {
namespace {

constexpr char kListen[] = "0A";  // TCP_LISTEN in /proc/net/tcp
constexpr int kPathBytes = 64;

// The socket's inode in one table of /proc/net, or "".
std::string listening_inode(const std::string& table, int port) {
  std::ifstream in(table);
  std::string line;
  std::getline(in, line);  // the head
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >>
        inode;
    const size_t colon = local.rfind(':');
    if (state != kListen || colon == std::string::npos) continue;
    if (std::strtol(local.c_str() + colon + 1, nullptr, 16) == port) return inode;
  }
  return "";
}

struct CloseDir {
  void operator()(DIR* dir) const { closedir(dir); }
};
using Dir = std::unique_ptr<DIR, CloseDir>;

bool holds_socket(const std::string& fd_folder, const std::string& wanted) {
  const Dir dir(opendir(fd_folder.c_str()));
  if (!dir) return false;
  while (const dirent* entry = readdir(dir.get())) {
    char target[kPathBytes];
    const std::string link = fd_folder + "/" + entry->d_name;
    const ssize_t size = readlink(link.c_str(), target, sizeof target);
    if (size > 0 && std::string(target, static_cast<size_t>(size)) == wanted) return true;
  }
  return false;
}

}  // namespace

std::optional<PortOwner> find_port_owner(int port, const std::string& root) {
  std::string inode = listening_inode(root + "/proc/net/tcp", port);
  if (inode.empty()) inode = listening_inode(root + "/proc/net/tcp6", port);
  if (inode.empty()) return std::nullopt;
  PortOwner owner;
  const std::string wanted = "socket:[" + inode + "]";
  const Dir proc(opendir((root + "/proc").c_str()));
  while (const dirent* entry = proc ? readdir(proc.get()) : nullptr) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0) continue;
    const std::string folder = root + "/proc/" + entry->d_name;
    if (!holds_socket(folder + "/fd", wanted)) continue;
    owner.pid = std::atoi(entry->d_name);
    std::ifstream comm(folder + "/comm");
    std::getline(comm, owner.program);
    break;
  }
  return owner;
}

std::string describe_port(int port, const std::string& root) {
  const auto owner = find_port_owner(port, root);
  if (!owner) return "taken";
  if (owner->pid == 0) return "taken by another process (run as root to see which)";
  return "taken by " + (owner->program.empty() ? "a process" : owner->program) + " (pid " +
         std::to_string(owner->pid) + ")";
}

}  // namespace tensorfold::service
