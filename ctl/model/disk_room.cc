#include "ctl/model/disk_room.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <filesystem>

#include "ctl/model/progress.h"

namespace tensorfold::models {

Result<int64_t> free_bytes(const std::string& folder) {
  std::filesystem::path path = std::filesystem::path(folder.empty() ? "." : folder);
  struct statvfs info {};
  while (::statvfs(path.c_str(), &info) != 0) {
    const int error = errno;
    const std::filesystem::path above = path.parent_path();
    if (error != ENOENT || above == path) return io_error(path.string(), error);
    path = above.empty() ? "." : above;
  }
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

Status check_room(const std::string& folder, int64_t needed_bytes) {
  TF_ASSIGN_OR_RETURN(const int64_t free, free_bytes(folder));
  if (needed_bytes <= 0 || free - kSpareDiskBytes >= needed_bytes) return ok_status();
  return unavailable(folder + ": " + size_text(needed_bytes) + " are to be written and " +
                     size_text(kSpareDiskBytes) + " stay free, but the disk has room for " +
                     size_text(free));
}

Status make_folders(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return io_error(folder, error.value());
  return ok_status();
}

}  // namespace tensorfold::models
