// Files as the weight readers and writers use them: positioned reads of a file that does not
// change, a write that appears whole or not at all, and SHA-256. Every error names the path.
//
// A ReadFile may be read from several threads. An AtomicFile belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace tensorfold {

class ReadFile {
 public:
  static Result<std::shared_ptr<const ReadFile>> open(const std::string& path);
  ReadFile(const ReadFile&) = delete;
  ReadFile& operator=(const ReadFile&) = delete;
  ~ReadFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  int fd() const { return fd_; }

  // Fills `out` from `offset`. A file that ends before is kDataLoss ("path: truncated ...").
  Status read(int64_t offset, std::span<std::byte> out) const;
  // Tells the kernel that what was read will not be needed again.
  void drop_pages(int64_t offset, int64_t bytes) const;

 private:
  ReadFile(std::string path, int fd, int64_t size);
  const std::string path_;
  const int fd_;
  const int64_t size_;
};

// Whole text file, at most `bytes_max`.
Result<std::string> read_text_file(const std::string& path, int64_t bytes_max);

// Writes `path` under a temporary name beside it; commit() syncs, renames and syncs the folder.
// Without commit() nothing is left behind.
class AtomicFile {
 public:
  static Result<std::unique_ptr<AtomicFile>> create(const std::string& path);
  // The same over a temporary file with that name, which may be there from before, is kept without
  // commit() and is gone on with at `position`.
  static Result<std::unique_ptr<AtomicFile>> go_on(const std::string& path,
                                                   const std::string& temporary, int64_t position);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  int64_t position() const { return position_; }
  Status append(std::span<const std::byte> bytes);
  Status append(std::string_view text);
  Status pad_to(int64_t multiple);                                    // with zeros
  Status write_at(int64_t offset, std::span<const std::byte> bytes);  // position() stays
  Status sync();                                                      // what was written is safe
  Status commit();

 private:
  AtomicFile(std::string path, std::string temporary, int fd);
  const std::string path_, temporary_;
  int fd_;
  int64_t position_ = 0;
  bool keep_ = false;  // the temporary file
};

class Sha256 {
 public:
  static constexpr size_t kDigestBytes = 32;
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  void update_u64(uint64_t value);  // 8 bytes, little-endian
  std::string hex();                // finishes; 64 lower-case digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::span<const std::byte> bytes);

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace tensorfold
