// What a finished formation hands over, and the Group made of it.
// Owner: the forming thread, then the Group. Deliberately private to engine/cluster.
#pragma once

#include <memory>
#include <vector>

#include "engine/cluster/channel.h"
#include "engine/cluster/group.h"
#include "engine/cluster/group_health.h"

namespace tensorfold {

struct GroupParts {
  int rank = 0;
  int world_size = 0;
  uint64_t generation = 0;
  LinkTimers timers;
  const Clock* clock = nullptr;
  std::shared_ptr<GroupHealth> health;
  // By rank. Controls: on a worker the head's alone. Heartbeats: all but the own.
  std::vector<std::unique_ptr<Channel>> controls, heartbeats;
  std::unique_ptr<Collective> collective;
};

Result<std::unique_ptr<Group>> make_group(GroupParts parts);

}  // namespace tensorfold
