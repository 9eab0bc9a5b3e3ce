#include "daemon/service/memory_watch.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "daemon/preflight/text.h"

namespace tensorfold::service {

std::optional<HostRoom> host_room(const std::string& root) {
  std::ifstream in(root + "/proc/meminfo");
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto total = preflight::meminfo_bytes(text, "MemTotal");
  const auto available = preflight::meminfo_bytes(text, "MemAvailable");
  if (!total || !available) return std::nullopt;
  return HostRoom{*total, *available};
}

int64_t memory_floor_bytes(int64_t setting_mib, int64_t total_bytes) {
  if (setting_mib < 0) return 0;
  if (setting_mib > 0) return setting_mib << 20;
  return std::min(kMemoryFloorBytesMost, total_bytes / kMemoryFloorPart);
}

MemoryAct MemoryWatch::look(int64_t available_bytes, int64_t floor_bytes, int64_t now_us) {
  if (!holds_) {
    if (available_bytes >= floor_bytes) return MemoryAct::kNone;
    holds_ = true;
    next_cut_us_ = now_us + kCutEveryUs;
    return MemoryAct::kHold;
  }
  if (available_bytes >= floor_bytes + floor_bytes / 4) {
    holds_ = false;
    return MemoryAct::kRelease;
  }
  if (available_bytes >= floor_bytes / 2 || now_us < next_cut_us_) return MemoryAct::kNone;
  next_cut_us_ = now_us + kCutEveryUs;
  return MemoryAct::kCutNewest;
}

}  // namespace tensorfold::service
