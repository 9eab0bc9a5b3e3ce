// Reading the key file. Owner: none. Deliberately opens before it checks, and checks what it
// opened: a file that is swapped in between does not get by.
#include "engine/cluster/link_key.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <span>

#include "engine/base/positioned_io.h"
#include "engine/cluster/fd.h"

namespace tensorfold {

Result<std::string> read_link_key(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file.open()) return io_error(path, errno);
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return io_error(path, errno);
  if (!S_ISREG(about.st_mode)) return invalid_argument(path + " is not a regular file");
  if ((about.st_mode & 077U) != 0) {
    return invalid_argument(path +
                            " holds the cluster's key and must be for its owner alone: "
                            "chmod 600");
  }
  std::string key(kLinkKeyBytesMax + 1, '\0');
  const IoOutcome read = read_at(file.get(), 0, std::as_writable_bytes(std::span(key)));
  if (read.error != 0) return io_error(path, read.error);
  key.resize(read.bytes);
  if (key.size() > kLinkKeyBytesMax)
    return invalid_argument(path + " is longer than " + std::to_string(kLinkKeyBytesMax) +
                            " bytes");
  key.erase(key.find_last_not_of(" \t\r\n") + 1);
  if (key.size() < kLinkKeyBytesLeast) {
    return invalid_argument(path + " has a key of " + std::to_string(key.size()) +
                            " bytes, at least " + std::to_string(kLinkKeyBytesLeast) +
                            " are needed (openssl rand -hex 32)");
  }
  return key;
}

}  // namespace tensorfold
