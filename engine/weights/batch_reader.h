// BatchReader: many small positioned reads at once, through io_uring where the kernel allows it and
// with pread otherwise. Owned by one thread. A read that the ring cannot finish is done by pread.
//
// Through the ring, reads that have not ended by a deadline are given up: kUnavailable, reason
// "slow_disk", names the file. What comes of them later goes into memory of the ring, which waits
// for it apart; while too many do, reads are refused at once. pread has no deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/weights/file.h"

namespace tensorfold {

inline constexpr int kReadsInFlightMax = 256;       // of one BatchReader
inline constexpr int64_t kReadDeadlineMs = 20'000;  // of as many
inline constexpr size_t kLateRingsMax = 4;          // that wait for reads that were given up

struct ReadRequest {
  const ReadFile* file = nullptr;
  int64_t offset = 0;
  std::span<std::byte> out;
};

class BatchReader {
 public:
  explicit BatchReader(bool use_ring, int64_t deadline_ms = kReadDeadlineMs);
  ~BatchReader();
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  bool has_ring() const { return ring_ != nullptr; }
  // Returns when all are done. The first failure is returned; the rest may or may not be filled.
  Status read(std::span<const ReadRequest> requests);

 private:
  struct Ring;
  Status read_window(std::span<const ReadRequest> requests);
  Status give_up(const ReadRequest& request);
  void forget_late();
  const int64_t deadline_ms_;
  std::unique_ptr<Ring> ring_;
  std::vector<std::unique_ptr<Ring>> late_;
};

}  // namespace tensorfold
