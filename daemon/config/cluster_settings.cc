// What must hold between the keys of [cluster] (daemon/config/config.h).
#include "daemon/config/config.h"

namespace tensorfold::config {
namespace {

Status missing(const Config& config, const std::string& value, const char* key, const char* what) {
  if (!value.empty()) return ok_status();
  return invalid_argument(std::string(key) + " is not set: cluster.role is " + config.cluster_role +
                              ", which needs " + what,
                          key);
}

}  // namespace

Status check_cluster(const Config& config) {
  const std::string& role = config.cluster_role;
  const auto number = [](int64_t value) { return std::to_string(value); };
  const int64_t world = config.cluster_world_size;
  if (role == "single") {
    if (world == 1) return ok_status();
    return invalid_argument("cluster.world_size is " + number(world) +
                                ", but cluster.role is single; use head or worker",
                            "cluster.world_size");
  }
  if (world < 2)
    return invalid_argument(
        "cluster.world_size is 1, but cluster.role is " + role + "; set the number of ranks",
        "cluster.world_size");
  if (config.engine_idle_unload_s > 0)
    return invalid_argument("engine.idle_unload_s is set, but cluster.role is " + role +
                                "; only a single machine's model can be unloaded",
                            "engine.idle_unload_s");
  const bool head = role == "head";
  if (head != (config.cluster_rank == 0) || config.cluster_rank >= world)
    return invalid_argument("cluster.rank is " + number(config.cluster_rank) + "; a " + role +
                                " has " + (head ? "0" : "1 to " + number(world - 1)),
                            "cluster.rank");
  TF_RETURN_IF_ERROR(missing(config, config.cluster_link_address, "cluster.link_address",
                             "this machine's address on the link"));
  TF_RETURN_IF_ERROR(missing(config, config.cluster_key_file, "cluster.key_file",
                             "the file with the key that all ranks share"));
  if (head) return ok_status();
  return missing(config, config.cluster_head, "cluster.head", "the head's address on the link");
}

}  // namespace tensorfold::config
