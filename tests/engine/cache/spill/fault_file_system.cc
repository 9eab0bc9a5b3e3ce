#include "tests/engine/cache/spill/fault_file_system.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace tensorfold {
namespace {

constexpr int64_t kSectorBytes = 512;

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

void write_into(std::vector<std::byte>& content, int64_t offset, std::span<const std::byte> bytes) {
  const auto end = static_cast<size_t>(offset) + bytes.size();
  if (content.size() < end) content.resize(end);
  std::copy(bytes.begin(), bytes.end(), content.begin() + offset);
}

}  // namespace

class FaultFile final : public OpenFile {
 public:
  FaultFile(FaultFileSystem& files, std::string path, FaultFileSystem::InodePtr inode)
      : files_(files), path_(std::move(path)), inode_(std::move(inode)) {}

  int64_t size() const override {
    std::lock_guard lock(files_.mutex_);
    return static_cast<int64_t>(inode_->now.size());
  }

  Status read(int64_t offset, std::span<std::byte> out) override {
    std::lock_guard lock(files_.mutex_);
    TF_RETURN_IF_ERROR(files_.begin(FaultFileSystem::Op::kRead, path_));
    if (static_cast<size_t>(offset) + out.size() > inode_->now.size())
      return data_loss(path_ + ": truncated");
    std::copy_n(inode_->now.begin() + offset, out.size(), out.begin());
    return ok_status();
  }

  Status write(int64_t offset, std::span<const std::byte> bytes) override {
    std::lock_guard lock(files_.mutex_);
    const Status status = files_.begin(FaultFileSystem::Op::kWrite, path_);
    if (!status.ok()) bytes = bytes.first(bytes.size() / 2);
    write_into(inode_->now, offset, bytes);
    inode_->unsafe.push_back({offset, {bytes.begin(), bytes.end()}});
    return status;
  }

  Status sync() override {
    std::lock_guard lock(files_.mutex_);
    TF_RETURN_IF_ERROR(files_.begin(FaultFileSystem::Op::kSync, path_));
    inode_->safe = inode_->now;
    inode_->unsafe.clear();
    return ok_status();
  }

 private:
  FaultFileSystem& files_;
  const std::string path_;
  const FaultFileSystem::InodePtr inode_;
};

class FaultLock final : public FolderLock {
 public:
  FaultLock(FaultFileSystem& files, std::string path)
      : files_(files), path_(std::move(path)), age_(files.lock_age_) {}
  ~FaultLock() override {
    std::lock_guard lock(files_.mutex_);
    if (age_ == files_.lock_age_) files_.locks_.erase(path_);
  }

 private:
  FaultFileSystem& files_;
  const std::string path_;
  const uint64_t age_;
};

bool FaultFileSystem::changes(Op op) {
  return op != Op::kOpen && op != Op::kRead && op != Op::kList && op != Op::kFreeBytes &&
         op != Op::kLock;
}

Status FaultFileSystem::begin(Op op, const std::string& path) {
  const int64_t number = operations_++;
  return hook_ ? hook_(number, op, path) : ok_status();
}

void FaultFileSystem::apply(const NameChange& c) {
  switch (c.op) {
    case Op::kCreate:
      safe_files_[c.to] = c.inode;
      break;
    case Op::kRename:
      safe_files_.erase(c.from);
      safe_files_[c.to] = c.inode;
      break;
    case Op::kRemove:
      safe_files_.erase(c.from);
      break;
    case Op::kMakeFolder:
      safe_folders_.insert(c.to);
      break;
    default:
      safe_folders_.erase(c.from);
  }
}

void FaultFileSystem::crash(uint64_t seed, double keep) {
  std::lock_guard lock(mutex_);
  std::mt19937_64 random(seed);
  const auto kept = [&] { return std::uniform_real_distribution<>(0, 1)(random) < keep; };
  for (const NameChange& change : unsafe_names_)
    if (kept()) apply(change);
  unsafe_names_.clear();
  std::set<InodePtr> inodes;
  for (const auto& [path, inode] : safe_files_) inodes.insert(inode);
  for (const InodePtr& inode : inodes) {
    for (const Write& w : inode->unsafe) {
      const auto size = static_cast<int64_t>(w.bytes.size());
      for (int64_t at = 0; at < size; at += kSectorBytes) {
        const int64_t n = std::min(kSectorBytes, size - at);
        if (kept())
          write_into(inode->safe, w.offset + at,
                     std::span(w.bytes).subspan(static_cast<size_t>(at), static_cast<size_t>(n)));
      }
    }
    inode->unsafe.clear();
    inode->now = inode->safe;
  }
  for (auto it = safe_files_.begin(); it != safe_files_.end();) {
    it = safe_folders_.count(folder_of(it->first)) != 0 ? std::next(it) : safe_files_.erase(it);
  }
  files_ = safe_files_;
  folders_ = safe_folders_;
  locks_.clear();
  ++lock_age_;
  hook_ = nullptr;
}

// ---------------------------------------------------------------- for tests

std::vector<std::string> FaultFileSystem::paths() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [path, inode] : files_) out.push_back(path);
  return out;
}

int64_t FaultFileSystem::file_bytes(const std::string& path) const {
  return static_cast<int64_t>(contents(path).size());
}

std::vector<std::byte> FaultFileSystem::contents(const std::string& path) const {
  std::lock_guard lock(mutex_);
  return files_.at(path)->now;
}

void FaultFileSystem::put(const std::string& path, std::vector<std::byte> bytes) {
  std::lock_guard lock(mutex_);
  auto inode = std::make_shared<Inode>();
  inode->now = inode->safe = std::move(bytes);
  inode->modified_us = now_us_;
  files_[path] = safe_files_[path] = inode;
  folders_.insert(folder_of(path));
  safe_folders_.insert(folder_of(path));
}

void FaultFileSystem::flip(const std::string& path, int64_t offset, uint8_t mask) {
  std::vector<std::byte> bytes = contents(path);
  bytes.at(static_cast<size_t>(offset)) ^= static_cast<std::byte>(mask);
  put(path, std::move(bytes));
}

void FaultFileSystem::cut(const std::string& path, int64_t bytes) {
  std::vector<std::byte> content = contents(path);
  content.resize(static_cast<size_t>(bytes));
  put(path, std::move(content));
}

// ---------------------------------------------------------------- operations

Result<std::unique_ptr<OpenFile>> FaultFileSystem::open(const std::string& path) {
  std::lock_guard lock(mutex_);
  TF_RETURN_IF_ERROR(begin(Op::kOpen, path));
  const auto at = files_.find(path);
  if (at == files_.end()) return file_error(path, ENOENT);
  return std::unique_ptr<OpenFile>(std::make_unique<FaultFile>(*this, path, at->second));
}

Result<std::unique_ptr<OpenFile>> FaultFileSystem::create(const std::string& path) {
  std::lock_guard lock(mutex_);
  TF_RETURN_IF_ERROR(begin(Op::kCreate, path));
  if (folders_.count(folder_of(path)) == 0) return file_error(path, ENOENT);
  auto inode = std::make_shared<Inode>();
  inode->modified_us = now_us_;
  files_[path] = inode;
  unsafe_names_.push_back({Op::kCreate, folder_of(path), "", path, inode});
  return std::unique_ptr<OpenFile>(std::make_unique<FaultFile>(*this, path, inode));
}

Status FaultFileSystem::rename(const std::string& from, const std::string& to) {
  std::lock_guard lock(mutex_);
  TF_RETURN_IF_ERROR(begin(Op::kRename, to));
  const auto at = files_.find(from);
  if (at == files_.end()) return file_error(from, ENOENT);
  const InodePtr inode = at->second;
  files_.erase(at);
  files_[to] = inode;
  unsafe_names_.push_back({Op::kRename, folder_of(to), from, to, inode});
  return ok_status();
}

Status FaultFileSystem::remove(const std::string& path) {
  std::lock_guard lock(mutex_);
  TF_RETURN_IF_ERROR(begin(Op::kRemove, path));
  if (files_.erase(path) == 0) return file_error(path, ENOENT);
  unsafe_names_.push_back({Op::kRemove, folder_of(path), path, "", nullptr});
  return ok_status();
}

Status FaultFileSystem::make_folder(const std::string& path) {
  std::lock_guard lock(mutex_);
  TF_RETURN_IF_ERROR(begin(Op::kMakeFolder, path));
  if (folders_.count(folder_of(path)) == 0) return file_error(path, ENOENT);
  if (!folders_.insert(path).second) return ok_status();
  unsafe_names_.push_back({Op::kMakeFolder, folder_of(path), "", path, nullptr});
  return ok_status();
}

Status FaultFileSystem::remove_folder(const std::string& path) {
  std::lock_guard lock(mutex_);
  TF_RETURN_IF_ERROR(begin(Op::kRemoveFolder, path));
  for (const auto& [file, inode] : files_)
    if (folder_of(file) == path) return file_error(path, ENOTEMPTY);
  folders_.erase(path);
  unsafe_names_.push_back({Op::kRemoveFolder, folder_of(path), path, "", nullptr});
  return ok_status();
}

Status FaultFileSystem::sync_folder(const std::string& path) {
  std::lock_guard lock(mutex_);
  TF_RETURN_IF_ERROR(begin(Op::kSyncFolder, path));
  std::vector<NameChange> left;
  for (NameChange& change : unsafe_names_) {
    if (change.folder == path) {
      apply(change);
    } else {
      left.push_back(std::move(change));
    }
  }
  unsafe_names_ = std::move(left);
  return ok_status();
}

Result<std::vector<FolderEntry>> FaultFileSystem::list(const std::string& path) {
  std::lock_guard lock(mutex_);
  TF_RETURN_IF_ERROR(begin(Op::kList, path));
  if (folders_.count(path) == 0) return file_error(path, ENOENT);
  std::vector<FolderEntry> out;
  for (const auto& [file, inode] : files_) {
    if (folder_of(file) == path)
      out.push_back(
          {name_of(file), false, static_cast<int64_t>(inode->now.size()), inode->modified_us});
  }
  for (const std::string& folder : folders_)
    if (folder != path && folder_of(folder) == path) out.push_back({name_of(folder), true, 0, 0});
  return out;
}

Result<int64_t> FaultFileSystem::free_bytes(const std::string& path) {
  std::lock_guard lock(mutex_);
  TF_RETURN_IF_ERROR(begin(Op::kFreeBytes, path));
  return free_bytes_;
}

Status FaultFileSystem::touch(const std::string& path, int64_t modified_us) {
  std::lock_guard lock(mutex_);
  TF_RETURN_IF_ERROR(begin(Op::kTouch, path));
  const auto at = files_.find(path);
  if (at == files_.end()) return file_error(path, ENOENT);
  at->second->modified_us = modified_us;
  return ok_status();
}

Result<std::unique_ptr<FolderLock>> FaultFileSystem::lock(const std::string& path) {
  std::lock_guard lock(mutex_);
  TF_RETURN_IF_ERROR(begin(Op::kLock, path));
  if (!locks_.insert(path).second)
    return Status(StatusCode::kIo, path + ": another process holds it", "",
                  std::string(kReasonLocked));
  return std::unique_ptr<FolderLock>(std::make_unique<FaultLock>(*this, path));
}

}  // namespace tensorfold
