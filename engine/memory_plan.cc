#include "engine/memory_plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace tensorfold {
namespace {

std::string gib(int64_t bytes) {
  std::array<char, 48> out{};
  std::snprintf(out.data(), out.size(), "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return out.data();
}

int64_t kib_after(std::string_view meminfo, std::string_view key) {
  const size_t at = meminfo.find(key);
  if (at == meminfo.npos) return 0;
  std::string_view rest = meminfo.substr(at + key.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
  int64_t kib = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), kib);
  return kib;
}

// Positions of the largest pool that fits, in whole blocks; 0: none does.
int64_t positions_that_fit(const MemoryPlan& plan, int64_t room) {
  if (plan.block_bytes <= 0 || plan.pool_bytes <= 0) return 0;
  const int64_t blocks = (room - (plan.total() - plan.pool_bytes)) / plan.block_bytes;
  const int64_t block_positions =
      plan.pool_positions / std::max<int64_t>(1, plan.pool_bytes / plan.block_bytes);
  return std::max<int64_t>(0, blocks) * block_positions;
}

}  // namespace

MemoryPlan plan_memory(const CacheLayout& layout, int64_t weights_bytes) {
  MemoryPlan out;
  out.weights_bytes = weights_bytes;
  out.block_bytes = layout.block_bytes;
  out.pool_bytes = layout.pool_blocks * layout.block_bytes;
  out.snapshots_bytes = layout.snapshot_units * layout.snapshot_unit_bytes();
  out.rings_bytes = layout.bytes() - out.pool_bytes - out.snapshots_bytes;
  out.pool_positions = layout.pool_blocks * kBlockPositions;
  return out;
}

std::string plan_text(const MemoryPlan& plan) {
  return "memory: weights " + gib(plan.weights_bytes) + ", cache " +
         gib(plan.pool_bytes + plan.rings_bytes + plan.snapshots_bytes) + " (" +
         std::to_string(plan.pool_positions) + " positions " + gib(plan.pool_bytes) +
         ", sequences " + gib(plan.rings_bytes) + ", snapshots " + gib(plan.snapshots_bytes) +
         "), together " + gib(plan.total());
}

HostMemory parse_meminfo(std::string_view meminfo) {
  return {kib_after(meminfo, "MemTotal:") * 1024, kib_after(meminfo, "MemAvailable:") * 1024};
}

std::optional<HostMemory> host_memory() {
  std::ifstream in("/proc/meminfo");
  std::ostringstream text;
  text << in.rdbuf();
  const HostMemory out = parse_meminfo(text.str());
  if (out.total_bytes <= 0 || out.available_bytes <= 0) return std::nullopt;
  return out;
}

int64_t free_bytes_kept(const HostMemory& host) {
  return host.total_bytes >= kLargeHostBytes ? kLargeHostFreeBytes : kSmallHostFreeBytes;
}

Status check_plan(const MemoryPlan& plan, const HostMemory& host) {
  const int64_t kept = free_bytes_kept(host), room = host.available_bytes - kept;
  if (plan.total() <= room) return ok_status();
  std::string text = plan_text(plan) + "; of " + gib(host.total_bytes) + " " +
                     gib(host.available_bytes) + " are available and " + gib(kept) +
                     " of them stay free";
  const int64_t fits = positions_that_fit(plan, room);
  text += fits > 0
              ? ". cache.pool_tokens = " + std::to_string(fits) + " would fit" + ", or free memory"
              : ". Free memory, or choose fewer engine.slots or a smaller model";
  return plan.total() > host.total_bytes - kept ? invalid_argument(text, "cache.pool_tokens")
                                                : unavailable(text);
}

}  // namespace tensorfold
