// The control socket's file: made with mode 0660, taken over when nobody answers on it, refused
// when somebody does.
#pragma once

#include <sys/types.h>

#include <string>

#include "engine/base/status.h"

namespace tensorfold::control {

class ControlSocket {
 public:
  // The status's reason is "in_use" when another instance answers there.
  static Result<ControlSocket> bind(const std::string& path);
  ControlSocket(ControlSocket&& other) noexcept;
  ControlSocket& operator=(ControlSocket&&) = delete;
  ~ControlSocket();  // removes the file if it is still ours

  int release_fd();  // a bound, not yet listening socket; the caller owns it
  const std::string& path() const { return path_; }

 private:
  ControlSocket() = default;
  int fd_ = -1;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace tensorfold::control
