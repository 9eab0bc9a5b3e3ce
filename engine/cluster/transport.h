// Transport: how the Collective of a group is made once its ranks are joined. Three makers:
//   sockets  engine/cluster/socket_collective.h: CPU ranks, over the link's own connections
//   NCCL     engine/cluster/nccl_collective.h: GPU ranks, in the CUDA library
//   RDMA     none yet: it would send its queue pair's address as `invitation` (all ranks' through
//            JoinContext::channels) and return a Collective like the others
// Owner: the daemon makes one transport for its life; the forming thread calls it.
// Deliberately knows nothing of plans or messages.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/cluster/group.h"
#include "engine/cluster/group_health.h"

namespace tensorfold {

class Channel;  // engine/cluster/channel.h: one connection, proven and encrypted

inline constexpr size_t kInvitationBytesMax = 4096;

struct JoinContext {
  int rank = 0;
  int world_size = 0;
  std::span<const std::byte> invitation;  // what the head's invite() gave, equal on all ranks
  // One per peer, by rank (none at the own rank), for the transport to take.
  std::vector<std::unique_ptr<Channel>> channels;
  LinkTimers timers;
  int64_t deadline_us = 0;         // of `clock`: joining ends by then
  const StopFlag* stop = nullptr;  // ends joining
  // The Collective keeps it: once it is broken every wait ends and returns its failure().
  std::shared_ptr<GroupHealth> health;
  const Clock* clock = nullptr;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  // Head, once a generation: bytes that every rank's join() gets.
  virtual Result<std::vector<std::byte>> invite() = 0;
  virtual Result<std::unique_ptr<Collective>> join(JoinContext context) = 0;
};

// Over the link's connections; ranks of any number.
std::unique_ptr<Transport> make_socket_transport();

}  // namespace tensorfold
