// See the header.
#include "engine/group/rank_report.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

namespace tensorfold {
namespace {

struct Field {
  const char* name;
  int64_t RankStats::*value;
};

constexpr Field kFields[] = {
    {"resident_bytes", &RankStats::resident_bytes}, {"weight_bytes", &RankStats::weight_bytes},
    {"cache_bytes", &RankStats::cache_bytes},       {"temperature_mc", &RankStats::temperature_mc},
    {"clock_mhz", &RankStats::clock_mhz},           {"exchanges", &RankStats::exchanges},
    {"exchange_us", &RankStats::exchange_us},       {"exchange_bytes", &RankStats::exchange_bytes},
};

// The first number of a small file; -1: there is none.
int64_t number_in(const std::string& path, int skip = 0) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return -1;
  long long value = -1;
  bool read = true;
  for (int i = 0; i <= skip && read; ++i) read = std::fscanf(file, "%lld", &value) == 1;
  std::fclose(file);
  return read ? value : -1;
}

}  // namespace

void read_machine(RankStats& rank) {
  const int64_t pages = number_in("/proc/self/statm", 1);
  rank.resident_bytes = pages < 0 ? -1 : pages * sysconf(_SC_PAGESIZE);
  rank.temperature_mc = -1;
  for (int zone = 0; zone < kThermalZonesMax; ++zone) {
    const std::string folder = "/sys/class/thermal/thermal_zone" + std::to_string(zone);
    if (access(folder.c_str(), F_OK) != 0) break;
    rank.temperature_mc = std::max(rank.temperature_mc, number_in(folder + "/temp"));
  }
  const int64_t khz = number_in("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq");
  rank.clock_mhz = khz < 0 ? -1 : khz / 1000;
}

LinkFields fields_of(const RankStats& rank) {
  LinkFields out = {{"state", rank.state}};
  for (const Field& f : kFields)
    if (rank.*f.value >= 0) out.emplace_back(f.name, std::to_string(rank.*f.value));
  return out;
}

RankStats rank_of(const PeerStatus& peer) {
  RankStats out;
  out.rank = peer.rank;
  out.here = true;
  out.address = peer.address;
  out.heard_ms_ago = peer.heard_ms_ago;
  out.rtt_us = peer.rtt_us;
  for (const auto& [name, value] : peer.report) {
    if (name == "state") out.state = value;
    for (const Field& f : kFields) {
      if (name != f.name) continue;
      int64_t number = -1;
      const char* end = value.data() + value.size();
      if (std::from_chars(value.data(), end, number).ptr == end) out.*f.value = number;
    }
  }
  return out;
}

RankReport::RankReport(ClusterStats base, int rank, ClusterBoard* board, const Clock& clock)
    : stats_(std::move(base)), board_(board), clock_(clock) {
  own_.rank = rank;
  own_.here = true;
  own_.state = "waiting";
}

void RankReport::set_memory(int64_t weight_bytes, int64_t cache_bytes) {
  own_.weight_bytes = weight_bytes;
  own_.cache_bytes = cache_bytes;
}

void RankReport::formed(const Group& group) {
  stats_.generation = group.generation();
  ++stats_.groups_formed_total;
  own_.state = "ready";
}

void RankReport::lost(const std::string& why) {
  stats_.generation = 0;
  ++stats_.groups_lost_total;
  stats_.last_loss = why;
  own_.state = "waiting";
  tick_now(nullptr);
}

void RankReport::tick(Group* group) {
  const int64_t now = clock_.monotonic_us();
  if (now < next_us_) return;
  next_us_ = now + kReportEveryUs;
  tick_now(group);
}

void RankReport::tick_now(Group* group) {
  if (board_ == nullptr) return;
  read_machine(own_);
  own_.exchanges = own_.exchange_us = own_.exchange_bytes = -1;
  std::vector<PeerStatus> peers;
  if (group != nullptr) {
    const LinkCounters c = group->counters();
    own_.exchanges = c.exchanges;
    own_.exchange_us = c.exchange_us;
    own_.exchange_bytes = c.exchange_bytes;
    (void)group->publish(fields_of(own_));
    peers = group->peers();
  }
  ClusterStats stats = stats_;
  for (int r = 0; r < stats.world_size; ++r) {
    RankStats rank;
    rank.rank = r;
    rank.state = "missing";
    if (r == own_.rank) rank = own_;
    for (const PeerStatus& peer : peers)
      if (peer.rank == r) rank = rank_of(peer);
    stats.ranks.push_back(std::move(rank));
  }
  board_->store(std::move(stats));
}

}  // namespace tensorfold
