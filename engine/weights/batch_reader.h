// BatchReader: many small positioned reads at once, through io_uring where the kernel allows it and
// with pread otherwise. Owned by one thread. A read that the ring cannot finish is done by pread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/base/status.h"
#include "engine/weights/file.h"

namespace tensorfold {

inline constexpr int kReadsInFlightMax = 256;  // of one BatchReader

struct ReadRequest {
  const ReadFile* file = nullptr;
  int64_t offset = 0;
  std::span<std::byte> out;
};

class BatchReader {
 public:
  explicit BatchReader(bool use_ring);
  ~BatchReader();
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  bool has_ring() const { return ring_ != nullptr; }
  // Returns when all are done. The first failure is returned; the rest may or may not be filled.
  Status read(std::span<const ReadRequest> requests);

 private:
  struct Ring;
  Status read_window(std::span<const ReadRequest> requests);
  std::unique_ptr<Ring> ring_;
};

}  // namespace tensorfold
