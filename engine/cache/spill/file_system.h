// FileSystem: every file operation of the spill tier, and nothing else, goes through here, so that
// tests can lose, reorder, tear, refuse and delay each of them.
//
// Callable from several threads; an OpenFile belongs to one at a time. Errors are kIo with a reason
// from kReason*, so that callers can tell a full disk from a broken one; a missing file is
// kNotFound, a file that ends too early kDataLoss. Deliberately knows nothing of formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold {

inline constexpr std::string_view kReasonDiskFull = "disk_full";
inline constexpr std::string_view kReasonReadOnly = "read_only";
inline constexpr std::string_view kReasonLocked = "locked";
inline constexpr std::string_view kReasonIo = "io";

// kIo (or kNotFound) with the reason that belongs to `errno_value`.
Status file_error(const std::string& path, int errno_value);

class OpenFile {
 public:
  virtual ~OpenFile() = default;  // closes
  virtual int64_t size() const = 0;
  virtual Status read(int64_t offset, std::span<std::byte> out) = 0;  // all of it
  virtual Status write(int64_t offset, std::span<const std::byte> bytes) = 0;
  virtual Status sync() = 0;  // data and size are on the disk
};

// Held while it lives.
class FolderLock {
 public:
  virtual ~FolderLock() = default;
};

struct FolderEntry {
  std::string name;
  bool folder = false;
  int64_t bytes = 0;
  int64_t modified_us = 0;  // since 1970-01-01 UTC
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual Result<std::unique_ptr<OpenFile>> open(const std::string& path) = 0;    // to read
  virtual Result<std::unique_ptr<OpenFile>> create(const std::string& path) = 0;  // empty, 0600
  virtual Status rename(const std::string& from, const std::string& to) = 0;      // replaces
  virtual Status remove(const std::string& path) = 0;                             // of a file
  virtual Status make_folder(const std::string& path) = 0;    // 0700, also when it is there
  virtual Status remove_folder(const std::string& path) = 0;  // an empty one
  virtual Status sync_folder(const std::string& path) = 0;    // names are on the disk
  virtual Result<std::vector<FolderEntry>> list(const std::string& path) = 0;  // no "." and ".."
  virtual Result<int64_t> free_bytes(const std::string& path) = 0;             // for this user
  virtual Status touch(const std::string& path, int64_t modified_us) = 0;
  // One holder at a time, over all processes; refused with kReasonLocked.
  virtual Result<std::unique_ptr<FolderLock>> lock(const std::string& path) = 0;
};

// The machine's own.
FileSystem& disk_file_system();

}  // namespace tensorfold
