// RankReport: what a rank tells of its machine, to its peers with the heartbeats and to its own
// status. Reads /proc and /sys of this machine; what is not there is left out.
// Owner: the engine thread of the rank, about once a second.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/clock.h"
#include "engine/cluster/group.h"
#include "engine/cluster_options.h"
#include "engine/stats_board.h"

namespace tensorfold {

inline constexpr int64_t kReportEveryUs = 500'000;
inline constexpr int kThermalZonesMax = 64;

// Memory, temperature and clock of this process and machine.
void read_machine(RankStats& rank);

LinkFields fields_of(const RankStats& rank);
RankStats rank_of(const PeerStatus& peer);  // unknown fields are ignored

// Keeps the cluster's part of the status board up to date.
class RankReport {
 public:
  RankReport(ClusterStats base, int rank, ClusterBoard* board, const Clock& clock);

  void set_memory(int64_t weight_bytes, int64_t cache_bytes);
  void formed(const Group& group);
  void lost(const std::string& why);
  // Publishes and collects, when it is time for it. nullptr: there is no group.
  void tick(Group* group);
  void tick_now(Group* group);

 private:
  ClusterStats stats_;
  RankStats own_;
  ClusterBoard* const board_;  // nullptr: nobody looks
  const Clock& clock_;
  int64_t next_us_ = 0;
};

}  // namespace tensorfold
