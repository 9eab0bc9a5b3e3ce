// ClusterOptions and RankStats: what the daemon tells the engine of the cluster that it is a rank
// of, and what it learns of all ranks. Part of engine/engine.h. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tensorfold {

// One rank of a model. kSingle: this process has all of it, and nothing else here counts.
struct ClusterOptions {
  enum class Role : unsigned char { kSingle, kHead, kWorker } role = Role::kSingle;
  int rank = 0;  // 0: the head
  int world_size = 1;
  std::string link_address;  // of this machine, numeric
  int link_port = 29620;
  std::string head_address;    // workers: the head's link address, numeric
  std::string key_file;        // with the key that all ranks share
  std::string transport;       // "nccl", "sockets"; else by the device
  bool bf16_exchange = false;  // partial results travel as bf16, not as fp32
  int timer_divisor = 1;       // tests: every wait of the link is divided by it
  std::string version;         // that ranks must agree on; empty: this build's
};

// One rank as its own process tells it, for status and metrics; what can't be read is -1.
struct RankStats {
  int rank = 0;
  bool here = false;    // it is this process, or belongs to the group that stands
  std::string state;    // "ready", "waiting", ...
  std::string address;  // on the link; empty: this process
  int64_t resident_bytes = -1, weight_bytes = -1, cache_bytes = -1;
  int64_t temperature_mc = -1;  // the hottest zone of the machine, in 1/1000 degree Celsius
  int64_t clock_mhz = -1;
  int64_t exchanges = -1, exchange_us = -1, exchange_bytes = -1;  // of the group that stands
  int64_t heard_ms_ago = -1, rtt_us = -1;                         // from here
};

struct ClusterStats {
  ClusterOptions::Role role = ClusterOptions::Role::kSingle;
  int world_size = 1;
  uint64_t generation = 0;  // of the group that stands; 0: none
  uint64_t groups_formed_total = 0, groups_lost_total = 0;
  std::string last_loss;  // why the last group ended
  std::vector<RankStats> ranks;
};

}  // namespace tensorfold
