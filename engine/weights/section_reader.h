// SectionReader: reads a section of a prepared image into its arrays and hashes them, past the page
// cache where the file system allows it (O_DIRECT), in pieces of one aligned buffer.
//
// Belongs to one thread. Does not check the hash: who knows what it should be does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/base/status.h"
#include "engine/weights/file.h"

namespace tensorfold {

inline constexpr int64_t kSectionPieceBytes = 8 << 20;  // of one read

// Where an array of a section lies in it.
struct SectionArray {
  int64_t offset = 0;  // from the section's begin
  std::span<std::byte> bytes;
};

class SectionReader {
 public:
  explicit SectionReader(std::shared_ptr<const ReadFile> file);
  ~SectionReader();
  SectionReader(const SectionReader&) = delete;
  SectionReader& operator=(const SectionReader&) = delete;

  // The arrays (ascending, not overlapping) of the section at `offset`, a multiple of 4 KiB; `hash`
  // sees their bytes in order.
  Status read(int64_t offset, std::span<const SectionArray> arrays, Sha256& hash);

 private:
  struct FreeBuffer {
    void operator()(void* p) const;
  };
  // How many bytes at `offset` (of `wanted` at most) are now in the buffer.
  Result<int64_t> read_piece(int64_t offset, int64_t wanted);

  const std::shared_ptr<const ReadFile> file_;
  int direct_ = -1;  // file descriptor; -1: the file's own is used
  std::unique_ptr<std::byte, FreeBuffer> buffer_;
};

}  // namespace tensorfold
