#include "daemon/role.h"

namespace tensorfold {

ClusterOptions cluster_options_of(const config::Config& config) {
  ClusterOptions out;
  if (config.cluster_role == "single") return out;
  out.role =
      config.cluster_role == "head" ? ClusterOptions::Role::kHead : ClusterOptions::Role::kWorker;
  out.rank = static_cast<int>(config.cluster_rank);
  out.world_size = static_cast<int>(config.cluster_world_size);
  out.link_address = config.cluster_link_address;
  out.link_port = static_cast<int>(config.cluster_link_port);
  out.head_address = config.cluster_head;
  out.key_file = config.cluster_key_file;
  out.transport = config.cluster_transport;
  out.bf16_exchange = config.cluster_exchange == "bf16";
  out.timer_divisor = static_cast<int>(config.cluster_timer_divisor);
  return out;
}

bool may_end(const ClusterOptions& options, const EngineStats& stats) {
  return options.role != ClusterOptions::Role::kWorker || stats.slots_busy == 0;
}

std::string waiting_text(const EngineStats& stats) { return "waiting: " + stats.state_detail; }

}  // namespace tensorfold
