// What a rank's model will take of memory, summed up before any of it is taken: on a GB10 program,
// page cache and GPU share one memory, and a machine that runs out of it freezes instead of
// failing.
//
// Pure but for host_memory(). Counts what is allocated at load time and kept: weights as stored,
// and the cache. Not counted, and part of what stays free: workspaces, the rows of Engram tables
// that are kept, NCCL, copies of weights that the CPU engine lays out anew.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/status.h"
#include "engine/cache/cache_layout.h"

namespace tensorfold {

inline constexpr int64_t kLargeHostBytes = int64_t{64} << 30;  // a machine of a model's size
inline constexpr int64_t kLargeHostFreeBytes = int64_t{6} << 30;
inline constexpr int64_t kSmallHostFreeBytes = int64_t{256} << 20;

struct MemoryPlan {
  int64_t weights_bytes = 0;
  int64_t pool_bytes = 0;       // the cache's blocks
  int64_t rings_bytes = 0;      // of all slots
  int64_t snapshots_bytes = 0;  // of the prefix cache
  int64_t pool_positions = 0;   // tokens that the pool holds
  int64_t block_bytes = 0;      // of one block of the pool
  int64_t total() const { return weights_bytes + pool_bytes + rings_bytes + snapshots_bytes; }
};
MemoryPlan plan_memory(const CacheLayout& layout, int64_t weights_bytes);
std::string plan_text(const MemoryPlan& plan);  // one line

struct HostMemory {
  int64_t total_bytes = 0, available_bytes = 0;
};
HostMemory parse_meminfo(std::string_view meminfo);  // zeros: it does not say
std::optional<HostMemory> host_memory();             // of this machine, from /proc/meminfo

// Of this machine's memory, what is left to everybody else.
int64_t free_bytes_kept(const HostMemory& host);

// kInvalidArgument: it can never fit this machine. kUnavailable: not into what is available now.
// The message says what takes how much, and which pool would fit.
Status check_plan(const MemoryPlan& plan, const HostMemory& host);

}  // namespace tensorfold
