// What head and workers have in common while a group is formed: checked options, the port, opening
// proven connections, and the mesh: the heartbeat and exchange connections of one generation.
// Owner: the forming thread. Deliberately private to engine/cluster; policy is in head_former.cc
// and worker_former.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/cluster/gate.h"
#include "engine/cluster/group.h"
#include "engine/cluster/group_parts.h"
#include "engine/cluster/link_address.h"
#include "engine/cluster/messages.h"
#include "engine/cluster/transport.h"

namespace tensorfold {

using TellProgress = std::function<void(const FormProgress&)>;

// What a former is made of. `clock`, `log` and `transport` outlive it.
struct FormerBase {
  GroupOptions options;
  LinkAddress link;
  Transport& transport;
  LogSink& log;
  const Clock& clock;
  uint64_t instance = 0;
  std::unique_ptr<LinkGate> gate;  // none: does not listen, or the address is not there yet

  LinkWait wait_ms(int64_t ms, const StopFlag& stop) const {
    return {&clock, clock.monotonic_us() + ms * 1000, &stop, nullptr};
  }
  bool listens() const { return options.rank == 0 || options.world_size > 2; }
  // Opens the gate when it should be and is not. kUnavailable: the address is not there.
  Status open_gate();
  JoinRequest request(ChannelUse use, uint64_t generation) const;
  // Connects, proves, joins: a welcomed channel, or why not (a Refusal's text). answer_ms: for the
  // answer, which the other side's forming thread gives when it comes to it.
  Result<std::unique_ptr<Channel>> call(const LinkAddress& to, ChannelUse use, uint64_t generation,
                                        int64_t answer_ms, const StopFlag& stop);
};

// While it lives, callers wait for the forming thread; afterwards the gate refuses them.
class GateOpening {
 public:
  explicit GateOpening(LinkGate* gate) : gate_(gate) {
    if (gate_ != nullptr) gate_->admit();
  }
  ~GateOpening() {
    if (gate_ != nullptr) gate_->refuse_all({reason_, {}});
  }
  GateOpening(const GateOpening&) = delete;
  GateOpening& operator=(const GateOpening&) = delete;
  void say(std::string reason) { reason_ = std::move(reason); }

 private:
  LinkGate* gate_;
  std::string reason_ = "no group is being formed now";
};

void refuse(Channel& channel, const Refusal& why);
bool welcome(Channel& channel);  // false: it is gone

// The connections of one generation, as they come.
class Mesh {
 public:
  Mesh(int rank, int world_size, uint64_t generation);
  bool complete() const;
  void add(int rank, ChannelUse use, std::unique_ptr<Channel> channel);
  // A caller of another rank: taken and welcomed, or refused; what was wrong, or empty.
  std::string answer(GateCaller caller);
  std::vector<std::unique_ptr<Channel>> heartbeats, exchanges;  // by rank

 private:
  const int rank_;
  const uint64_t generation_;
};

// The transport's Collective over `mesh`, within what is left of `deadline_us`.
Result<GroupParts> join_transport(FormerBase& base, Mesh& mesh,
                                  std::span<const std::byte> invitation, int64_t deadline_us,
                                  const StopFlag& stop);

std::unique_ptr<GroupFormer> make_head_former(FormerBase base);
std::unique_ptr<GroupFormer> make_worker_former(FormerBase base, LinkAddress head);

}  // namespace tensorfold
