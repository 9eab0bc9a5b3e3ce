// MemoryWatch: what little free memory asks of the service. On a GB10 programs, page cache and GPU
// share one memory, and a machine that runs out of it freezes without a word; this service cannot
// give much back, but it can stop adding work.
//
// Below the floor nothing new begins; below half of it the newest reply is cut, one every two
// seconds; a quarter above the floor all goes on. Pure but for host_room(). Owner: the loop.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tensorfold::service {

inline constexpr int64_t kMemoryFloorBytesMost = int64_t{2} << 30;  // of one that is not set
inline constexpr int64_t kMemoryFloorPart = 64;                     // of the machine's memory
inline constexpr int64_t kCutEveryUs = 2'000'000;

struct HostRoom {
  int64_t total_bytes = 0, available_bytes = 0;
};
// From /proc/meminfo; nothing when it cannot be read.
std::optional<HostRoom> host_room(const std::string& root = "");

// limits.memory_floor_mib: -1: none, 0: a part of the machine's memory.
int64_t memory_floor_bytes(int64_t setting_mib, int64_t total_bytes);

enum class MemoryAct : unsigned char { kNone, kHold, kCutNewest, kRelease };

class MemoryWatch {
 public:
  // A look every fraction of a second. floor_bytes 0: none.
  MemoryAct look(int64_t available_bytes, int64_t floor_bytes, int64_t now_us);
  bool holds() const { return holds_; }

 private:
  bool holds_ = false;
  int64_t next_cut_us_ = 0;
};

}  // namespace tensorfold::service
