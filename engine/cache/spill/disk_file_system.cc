// The machine's file system (see file_system.h). System calls are retried on EINTR; a short read or
// write goes on where it stopped. Pages of synced and of read data are given back to the kernel:
// on a machine with one memory for everything the page cache is never needed.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "engine/cache/spill/file_system.h"

#include "engine/base/positioned_io.h"

namespace tensorfold {
namespace {

constexpr mode_t kFileMode = 0600;
constexpr mode_t kFolderMode = 0700;
constexpr int64_t kSecondUs = 1'000'000;

std::string_view reason_of(int errno_value) {
  switch (errno_value) {
    case ENOSPC:
    case EDQUOT:
      return kReasonDiskFull;
    case EROFS:
    case EACCES:
    case EPERM:
      return kReasonReadOnly;
    default:
      return kReasonIo;
  }
}

class DiskFile final : public OpenFile {
 public:
  DiskFile(std::string path, int fd, int64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}
  ~DiskFile() override { ::close(fd_); }
  int64_t size() const override { return size_; }

  Status read(int64_t offset, std::span<std::byte> out) override {
    const IoOutcome done = read_at(fd_, offset, out);
    if (done.error != 0) return file_error(path_, done.error);
    if (done.bytes < out.size()) {
      return data_loss(path_ + ": truncated: it ends before byte " +
                       std::to_string(offset + static_cast<int64_t>(out.size())));
    }
    drop_pages(offset, static_cast<int64_t>(out.size()));
    return ok_status();
  }

  Status write(int64_t offset, std::span<const std::byte> bytes) override {
    const IoOutcome done = tensorfold::write_at(fd_, offset, bytes);
    if (done.error != 0) return file_error(path_, done.error);
    size_ = std::max(size_, offset + static_cast<int64_t>(bytes.size()));
    return ok_status();
  }

  Status sync() override {
    if (::fsync(fd_) != 0) return file_error(path_ + ": fsync", errno);
    drop_pages(0, size_);
    return ok_status();
  }

 private:
  void drop_pages(int64_t offset, int64_t bytes) const {
    (void)::posix_fadvise(fd_, offset, bytes, POSIX_FADV_DONTNEED);  // advice only
  }

  const std::string path_;
  const int fd_;
  int64_t size_;
};

class DiskLock final : public FolderLock {
 public:
  explicit DiskLock(int fd) : fd_(fd) {}
  ~DiskLock() override { ::close(fd_); }

 private:
  const int fd_;
};

int64_t modified_us_of(const struct stat& info) {
  return static_cast<int64_t>(info.st_mtim.tv_sec) * kSecondUs + info.st_mtim.tv_nsec / 1000;
}

class DiskFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<OpenFile>> open(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) return file_error(path, errno);
    struct stat info = {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      ::close(fd);
      return data_loss(path + ": not a regular file");
    }
    return std::unique_ptr<OpenFile>(std::make_unique<DiskFile>(path, fd, info.st_size));
  }

  Result<std::unique_ptr<OpenFile>> create(const std::string& path) override {
    const int fd =
        ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, kFileMode);
    if (fd < 0) return file_error(path, errno);
    if (::fchmod(fd, kFileMode) != 0) {
      const int error = errno;
      ::close(fd);
      return file_error(path, error);
    }
    return std::unique_ptr<OpenFile>(std::make_unique<DiskFile>(path, fd, 0));
  }

  Status rename(const std::string& from, const std::string& to) override {
    return ::rename(from.c_str(), to.c_str()) == 0 ? ok_status() : file_error(to, errno);
  }

  Status remove(const std::string& path) override {
    return ::unlink(path.c_str()) == 0 ? ok_status() : file_error(path, errno);
  }

  Status make_folder(const std::string& path) override {
    if (::mkdir(path.c_str(), kFolderMode) == 0) return ok_status();
    if (errno != EEXIST) return file_error(path, errno);
    struct stat info = {};
    if (::lstat(path.c_str(), &info) != 0) return file_error(path, errno);
    if (!S_ISDIR(info.st_mode)) return file_error(path, ENOTDIR);
    // Token ids lie in there: nobody else may look, whoever made the folder.
    if ((info.st_mode & 07777) == kFolderMode) return ok_status();
    return ::chmod(path.c_str(), kFolderMode) == 0 ? ok_status() : file_error(path, errno);
  }

  Status remove_folder(const std::string& path) override {
    return ::rmdir(path.c_str()) == 0 ? ok_status() : file_error(path, errno);
  }

  Status sync_folder(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return file_error(path, errno);
    const int rc = ::fsync(fd);
    const int error = errno;
    ::close(fd);
    return rc == 0 ? ok_status() : file_error(path + ": fsync", error);
  }

  Result<std::vector<FolderEntry>> list(const std::string& path) override {
    DIR* folder = ::opendir(path.c_str());
    if (folder == nullptr) return file_error(path, errno);
    std::vector<FolderEntry> entries;
    errno = 0;
    while (const dirent* d = ::readdir(folder)) {
      const std::string_view name = d->d_name;
      if (name == "." || name == "..") continue;
      struct stat info = {};
      // What is gone again meanwhile, is gone.
      if (::fstatat(::dirfd(folder), d->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
        entries.push_back(
            {std::string(name), S_ISDIR(info.st_mode), info.st_size, modified_us_of(info)});
      }
      errno = 0;
    }
    const int error = errno;
    ::closedir(folder);
    if (error != 0) return file_error(path, error);
    return entries;
  }

  Result<int64_t> free_bytes(const std::string& path) override {
    struct statvfs info = {};
    if (::statvfs(path.c_str(), &info) != 0) return file_error(path, errno);
    return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  }

  Status touch(const std::string& path, int64_t modified_us) override {
    std::array<timespec, 2> times = {};
    for (timespec& t : times) {
      t.tv_sec = static_cast<time_t>(modified_us / kSecondUs);
      t.tv_nsec = static_cast<long>(modified_us % kSecondUs * 1000);
    }
    return ::utimensat(AT_FDCWD, path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW) == 0
               ? ok_status()
               : file_error(path, errno);
  }

  Result<std::unique_ptr<FolderLock>> lock(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kFileMode);
    if (fd < 0) return file_error(path, errno);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(fd);
      if (error != EWOULDBLOCK) return file_error(path, error);
      return Status(StatusCode::kIo, path + ": another process holds it", "",
                    std::string(kReasonLocked));
    }
    return std::unique_ptr<FolderLock>(std::make_unique<DiskLock>(fd));
  }
};

}  // namespace

Status file_error(const std::string& path, int errno_value) {
  const Status status = io_error(path, errno_value);
  const auto code = errno_value == ENOENT ? StatusCode::kNotFound : StatusCode::kIo;
  return Status(code, status.message(), "", std::string(reason_of(errno_value)));
}

FileSystem& disk_file_system() {
  static DiskFileSystem files;
  return files;
}

}  // namespace tensorfold
