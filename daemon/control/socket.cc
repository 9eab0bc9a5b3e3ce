#include "daemon/control/socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace tensorfold::control {
namespace {

Status make_directory(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) return ok_status();
  const std::string directory = path.substr(0, slash);
  if (mkdir(directory.c_str(), 0755) == 0 || errno == EEXIST) return ok_status();
  return io_error("control socket: making " + directory, errno);
}

// Whether somebody answers; removes a socket file that nobody answers on.
Status clear_stale(const std::string& path, const sockaddr_un& address) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? ok_status() : io_error("control socket " + path, errno);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return invalid_argument("control socket: " + path + " exists and is not a socket");
  }
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return io_error("control socket", errno);
  const int code = connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = code == 0 ? 0 : errno;
  close(probe);
  if (error == 0 || error == EAGAIN) {
    return Status(StatusCode::kUnavailable, "another tensorfoldd answers on " + path, {}, "in_use");
  }
  if (error != ECONNREFUSED) return io_error("control socket " + path, error);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return io_error("control socket: removing the stale " + path, errno);
  }
  return ok_status();
}

}  // namespace

Result<ControlSocket> ControlSocket::bind(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.front() != '/' || path.size() >= sizeof address.sun_path) {
    return invalid_argument("control socket: '" + path + "' must be an absolute path of at most " +
                            std::to_string(sizeof address.sun_path - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  TF_RETURN_IF_ERROR(make_directory(path));
  TF_RETURN_IF_ERROR(clear_stale(path, address));
  ControlSocket out;
  out.path_ = path;
  out.fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (out.fd_ < 0) return io_error("control socket", errno);
  // The mode has to be right from the first moment: by umask, not by a later chmod.
  const mode_t before = umask(0117);
  const int code = ::bind(out.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = errno;
  umask(before);
  if (code != 0) return io_error("control socket " + path, error);
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return io_error("control socket " + path, errno);
  out.device_ = info.st_dev;
  out.inode_ = info.st_ino;
  return out;
}

ControlSocket::ControlSocket(ControlSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::exchange(other.path_, {})),
      device_(other.device_),
      inode_(std::exchange(other.inode_, 0)) {}

int ControlSocket::release_fd() { return std::exchange(fd_, -1); }

ControlSocket::~ControlSocket() {
  if (fd_ >= 0) close(fd_);
  struct stat info {};
  if (inode_ != 0 && lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ &&
      info.st_ino == inode_) {
    unlink(path_.c_str());
  }
}

}  // namespace tensorfold::control
