// A file system in memory that keeps apart what is written and what is safe: a crash loses any part
// of what came after the last fsync, in any order, sector by sector and name by name. It counts
// operations, so that a test can fail, or crash at, each one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/cache/spill/file_system.h"

namespace tensorfold {

class FaultFileSystem final : public FileSystem {
 public:
  enum class Op : uint8_t {
    kOpen,
    kCreate,
    kRead,
    kWrite,
    kSync,
    kRename,
    kRemove,
    kMakeFolder,
    kRemoveFolder,
    kSyncFolder,
    kList,
    kFreeBytes,
    kTouch,
    kLock,
  };
  static bool changes(Op op);  // writes something
  // Called before each operation; an error is what the operation gives. A write that fails has
  // written its first half.
  using Hook = std::function<Status(int64_t number, Op op, const std::string& path)>;

  explicit FaultFileSystem(const std::string& root) { safe_folders_ = folders_ = {root}; }

  void set_hook(Hook hook) { hook_ = std::move(hook); }
  int64_t operations() const { return operations_; }
  void set_free_bytes(int64_t bytes) { free_bytes_ = bytes; }
  void set_time_us(int64_t us) { now_us_ = us; }

  // Power fails: what was not synced is kept with probability `keep`, sector by sector and name by
  // name. All locks and hooks are gone.
  void crash(uint64_t seed, double keep);

  std::vector<std::string> paths() const;  // of files
  int64_t file_bytes(const std::string& path) const;
  std::vector<std::byte> contents(const std::string& path) const;
  void put(const std::string& path, std::vector<std::byte> bytes);  // safe at once
  void flip(const std::string& path, int64_t offset, uint8_t mask);
  void cut(const std::string& path, int64_t bytes);

  Result<std::unique_ptr<OpenFile>> open(const std::string& path) override;
  Result<std::unique_ptr<OpenFile>> create(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status make_folder(const std::string& path) override;
  Status remove_folder(const std::string& path) override;
  Status sync_folder(const std::string& path) override;
  Result<std::vector<FolderEntry>> list(const std::string& path) override;
  Result<int64_t> free_bytes(const std::string& path) override;
  Status touch(const std::string& path, int64_t modified_us) override;
  Result<std::unique_ptr<FolderLock>> lock(const std::string& path) override;

 private:
  friend class FaultFile;
  friend class FaultLock;

  struct Write {
    int64_t offset = 0;
    std::vector<std::byte> bytes;
  };
  struct Inode {
    std::vector<std::byte> now, safe;
    std::vector<Write> unsafe;
    int64_t modified_us = 0;
  };
  using InodePtr = std::shared_ptr<Inode>;
  struct NameChange {
    Op op;
    std::string folder, from, to;
    InodePtr inode;
  };

  Status begin(Op op, const std::string& path);
  void apply(const NameChange& change);

  mutable std::recursive_mutex mutex_;
  Hook hook_;
  int64_t operations_ = 0;
  int64_t free_bytes_ = int64_t{1} << 50;
  int64_t now_us_ = 1;
  std::map<std::string, InodePtr> files_, safe_files_;
  std::set<std::string> folders_, safe_folders_;
  std::vector<NameChange> unsafe_names_;
  std::set<std::string> locks_;
  uint64_t lock_age_ = 0;  // locks of before a crash free nothing
};

}  // namespace tensorfold
