// The head's side of forming: workers come to its port, are compared with it, told who is missing
// until all are there, connected with each other, and started together.
// Owner: the forming thread. Deliberately keeps nothing between two generations but its port.
#include <poll.h>

#include <algorithm>
#include <array>

#include "engine/cluster/forming.h"

namespace tensorfold {
namespace {

constexpr int64_t kRemarkMs = 10'000;       // a refusal is shown this long
constexpr int64_t kSameLineGapMs = 60'000;  // the same refusal is logged again

struct Member {
  std::unique_ptr<Channel> channel;  // none: the rank is not there
  JoinRequest request;
  int64_t heard_us = 0;
  bool ready = false;  // connected to all, this generation
};

class HeadFormer final : public GroupFormer {
 public:
  explicit HeadFormer(FormerBase base)
      : base_(std::move(base)), members_(static_cast<size_t>(base_.options.world_size)) {}

  int port() const override { return base_.gate ? base_.gate->port() : 0; }

  Result<std::unique_ptr<Group>> form(const StopFlag& stop, const TellProgress& progress) override;

 private:
  const LinkTimers& timers() const { return base_.options.timers; }
  std::vector<int> missing() const;
  void tell(FormState state, const std::string& text);
  void tell_missing(const std::string& news = {});
  void remark(const std::string& line);
  Status wait_for_address(const StopFlag& stop);
  Status gather(const StopFlag& stop);
  Status poll_once(const StopFlag& stop, int64_t until_us);
  void answer(GateCaller caller);
  std::string reason_against(const JoinRequest& request, std::vector<LinkDifference>& differences);
  void read_members();
  void drop(size_t rank, const std::string& why);
  void tick();
  Result<std::unique_ptr<Group>> assemble(const StopFlag& stop);
  Status connect_mesh(Mesh& mesh, int64_t deadline_us, const StopFlag& stop);
  Status wait_ready_all(int64_t deadline_us, const StopFlag& stop);
  void disband(const std::string& why);

  FormerBase base_;
  std::vector<Member> members_;  // by rank; the head's own stays empty
  bool connecting_ = false;      // the roster is out
  const TellProgress* progress_ = nullptr;
  std::string remark_;  // who was turned away last, and why: shown for a while
  int64_t remark_us_ = 0;
  std::string logged_;  // the same again is not news
  int64_t logged_us_ = 0;
};

std::vector<int> HeadFormer::missing() const {
  std::vector<int> out;
  for (size_t r = 1; r < members_.size(); ++r) {
    if (!members_[r].channel) out.push_back(static_cast<int>(r));
  }
  return out;
}

void HeadFormer::tell(FormState state, const std::string& text) {
  (*progress_)({state, text, missing(), 0});
}

// Those who wait hear it too.
void HeadFormer::tell_missing(const std::string& news) {
  const int64_t now = base_.clock.monotonic_us();
  if (!news.empty()) {
    remark_ = news;
    remark_us_ = now;
  } else if (now - remark_us_ > kRemarkMs * 1000) {
    remark_.clear();
  }
  std::string ranks;
  for (const int r : missing()) ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
  const std::string text = ranks.empty() ? "complete" : "waiting for rank " + ranks;
  const bool refused = !remark_.empty();
  tell(refused ? FormState::kRefused : FormState::kListening,
       refused ? text + " (" + remark_ + ")" : text);
  for (Member& m : members_) {
    if (!m.channel || !m.channel->out().empty()) continue;
    m.channel->out().put(FrameType::kForming, encode_text(text));
    (void)m.channel->flush();
  }
}

void HeadFormer::remark(const std::string& line) {
  const int64_t now = base_.clock.monotonic_us();
  if (line != logged_ || now - logged_us_ > kSameLineGapMs * 1000) {
    base_.log.warning("link: " + line);
    logged_ = line;
    logged_us_ = now;
  }
  tell_missing(line);
}

Result<std::unique_ptr<Group>> HeadFormer::form(const StopFlag& stop,
                                                const TellProgress& progress) {
  progress_ = &progress;
  TF_RETURN_IF_ERROR(wait_for_address(stop));
  GateOpening opening(base_.gate.get());
  for (;;) {
    const Status gathered = gather(stop);
    if (!gathered.ok()) {
      disband("the head was stopped");
      return gathered;
    }
    tell(FormState::kJoining, "connecting the ranks");
    connecting_ = true;
    Result<std::unique_ptr<Group>> group = assemble(stop);
    connecting_ = false;
    if (group.ok()) {
      opening.say("a group of " + std::to_string(base_.options.world_size) + " ranks stands");
      for (Member& m : members_) m = {};
      return group;
    }
    const std::string why = group.status().message();
    disband("the group could not be made: " + why);
    if (stop.requested()) return Status(StatusCode::kCancelled, "forming was stopped");
    base_.log.warning("link: the group could not be made: " + why);
    tell(FormState::kRefused, why);
    (void)wait_ready(-1, 0, base_.wait_ms(timers().retry_first_ms, stop));
  }
}

Status HeadFormer::wait_for_address(const StopFlag& stop) {
  for (;;) {
    if (stop.requested()) return {StatusCode::kCancelled, "forming was stopped"};
    const Status opened = base_.open_gate();
    if (opened.ok()) return opened;
    tell(FormState::kListening, opened.message());
    (void)wait_ready(-1, 0, base_.wait_ms(timers().retry_most_ms, stop));
  }
}

// Until every worker is there. Only a stop ends it early.
Status HeadFormer::gather(const StopFlag& stop) {
  tell_missing();
  int64_t next_tick_us = 0;
  while (!missing().empty()) {
    if (base_.clock.monotonic_us() >= next_tick_us) {
      tick();
      next_tick_us = base_.clock.monotonic_us() + timers().heartbeat_ms * 1000;
    }
    TF_RETURN_IF_ERROR(poll_once(stop, next_tick_us));
    read_members();
    while (std::optional<GateCaller> caller = base_.gate->take()) answer(std::move(*caller));
  }
  return ok_status();
}

// kCancelled when stopped; otherwise something may be there.
Status HeadFormer::poll_once(const StopFlag& stop, int64_t until_us) {
  std::array<pollfd, kRanksMax + 2> set{};
  nfds_t count = 0;
  set[count++] = {stop.fd(), POLLIN, 0};
  set[count++] = {base_.gate->ready_fd(), POLLIN, 0};
  for (const Member& m : members_) {
    if (m.channel) set[count++] = {m.channel->fd(), POLLIN, 0};
  }
  (void)::poll(set.data(), count, poll_ms(base_.clock.monotonic_us(), until_us));
  if (stop.requested()) return {StatusCode::kCancelled, "forming was stopped"};
  return ok_status();
}

std::string HeadFormer::reason_against(const JoinRequest& r,
                                       std::vector<LinkDifference>& differences) {
  const auto world = static_cast<uint32_t>(base_.options.world_size);
  if (r.use != ChannelUse::kControl) return "no group is being connected now";
  if (r.world_size != world) {
    differences = {{"world_size", std::to_string(world), std::to_string(r.world_size)}};
    return "the settings differ";
  }
  if (r.rank == 0 || r.rank >= world)
    return "rank " + std::to_string(r.rank) + " is not a worker's rank (1 to " +
           std::to_string(world - 1) + ")";
  differences = compare_fields(base_.options.fingerprint, r.fingerprint);
  if (!differences.empty()) return "the ranks do not fit together";
  const Member& there = members_[r.rank];
  if (there.channel && there.request.instance != r.instance)
    return "rank " + std::to_string(r.rank) + " is taken by " + there.channel->peer();
  return {};
}

void HeadFormer::answer(GateCaller caller) {
  if (!caller.channel) return tell_missing(caller.notice);
  Refusal refusal;
  refusal.reason = reason_against(caller.request, refusal.differences);
  const std::string peer = caller.channel->peer();
  const std::string rank = std::to_string(caller.request.rank);
  if (!refusal.reason.empty()) {
    refuse(*caller.channel, refusal);
    // Without the port, which differs each time.
    const std::string host = peer.substr(0, peer.rfind(':'));
    return remark("rank " + rank + " at " + host + " was refused: " + refusal.text());
  }
  if (!welcome(*caller.channel)) return;
  base_.log.info("link: rank " + rank + " is there, from " + peer);
  Member& member = members_[caller.request.rank];
  member.channel = std::move(caller.channel);
  member.request = std::move(caller.request);
  member.heard_us = base_.clock.monotonic_us();
  remark_.clear();
  tell_missing();
}

void HeadFormer::drop(size_t rank, const std::string& why) {
  base_.log.warning("link: rank " + std::to_string(rank) + " " + why);
  members_[rank] = {};
  tell_missing();
}

void HeadFormer::read_members() {
  for (size_t r = 1; r < members_.size(); ++r) {
    while (members_[r].channel) {
      Result<Frame> frame = members_[r].channel->receive_ready();
      if (frame.ok() && frame->header.type == FrameType::kForming) {
        members_[r].heard_us = base_.clock.monotonic_us();
        continue;
      }
      // A rank may be done while others still connect.
      if (frame.ok() && frame->header.type == FrameType::kReady && connecting_) {
        members_[r].ready = true;
        continue;
      }
      if (frame.ok() && frame->header.type == FrameType::kGoodbye) {
        drop(r, "gave up: " + decode_text(frame->payload).value_or("no reason"));
        break;
      }
      if (!frame.ok() && frame.status().code() == StatusCode::kDeadline) break;
      drop(r, frame.ok() ? "sent something unexpected" : "went away again");
    }
  }
}

void HeadFormer::tick() {
  const int64_t now = base_.clock.monotonic_us();
  bool dropped = false;
  for (size_t r = 1; r < members_.size(); ++r) {
    if (!members_[r].channel || now - members_[r].heard_us < timers().silent_ms * 1000) continue;
    drop(r, "is silent");
    dropped = true;
  }
  if (!dropped) tell_missing();
}

void HeadFormer::disband(const std::string& why) {
  for (Member& m : members_) {
    if (m.channel && m.channel->out().empty()) {
      m.channel->out().put(FrameType::kGoodbye, encode_text(why));
      (void)m.channel->flush();
    }
    m = {};
  }
}

Result<std::unique_ptr<Group>> HeadFormer::assemble(const StopFlag& stop) {
  const int64_t deadline_us = base_.clock.monotonic_us() + timers().mesh_ms * 1000;
  Roster roster;
  roster.generation = random_u64() | 1U;  // never 0
  TF_ASSIGN_OR_RETURN(roster.invitation, base_.transport.invite());
  TF_CHECK_LE(roster.invitation.size(), kInvitationBytesMax);
  for (size_t r = 1; r < members_.size(); ++r) {
    const JoinRequest& q = members_[r].request;
    roster.workers.push_back({static_cast<uint32_t>(r), q.listen_address, q.listen_port});
  }
  const LinkWait wait = base_.wait_ms(timers().send_ms, stop);
  for (size_t r = 1; r < members_.size(); ++r)
    TF_RETURN_IF_ERROR(members_[r].channel->send(FrameType::kRoster, encode(roster), wait));
  Mesh mesh(0, base_.options.world_size, roster.generation);
  TF_RETURN_IF_ERROR(connect_mesh(mesh, deadline_us, stop));
  TF_ASSIGN_OR_RETURN(GroupParts parts,
                      join_transport(base_, mesh, roster.invitation, deadline_us, stop));
  TF_RETURN_IF_ERROR(wait_ready_all(deadline_us, stop));
  parts.generation = roster.generation;
  for (size_t r = 1; r < members_.size(); ++r) {
    TF_RETURN_IF_ERROR(members_[r].channel->send(FrameType::kGo, {}, wait.until(deadline_us)));
    parts.controls[r] = std::move(members_[r].channel);
  }
  base_.log.info("link: a group of " + std::to_string(base_.options.world_size) +
                 " ranks stands, over " + std::string(base_.transport.name()));
  return make_group(std::move(parts));
}

Status HeadFormer::connect_mesh(Mesh& mesh, int64_t deadline_us, const StopFlag& stop) {
  while (!mesh.complete()) {
    TF_RETURN_IF_ERROR(poll_once(stop, deadline_us));
    while (std::optional<GateCaller> caller = base_.gate->take()) {
      const std::string wrong = mesh.answer(std::move(*caller));
      if (!wrong.empty()) base_.log.warning("link: " + wrong);
    }
    read_members();
    const std::vector<int> gone = missing();
    if (!gone.empty())
      return unavailable("rank " + std::to_string(gone.front()) + " went away while connecting");
    if (!mesh.complete() && base_.clock.monotonic_us() >= deadline_us)
      return {StatusCode::kDeadline, "the ranks did not connect in time"};
  }
  return ok_status();
}

Status HeadFormer::wait_ready_all(int64_t deadline_us, const StopFlag& stop) {
  LinkWait wait = base_.wait_ms(0, stop);
  wait.deadline_us = deadline_us;
  for (size_t r = 1; r < members_.size(); ++r) {
    while (!members_[r].ready) {
      Result<Frame> frame = members_[r].channel->receive(wait);
      const std::string who = "rank " + std::to_string(r);
      if (!frame.ok()) return frame.status().with_context(who);
      if (frame->header.type == FrameType::kReady) break;
      if (frame->header.type == FrameType::kForming) continue;  // an answer from before
      if (frame->header.type == FrameType::kGoodbye)
        return unavailable(who + ": " + decode_text(frame->payload).value_or("gave up"));
      return data_loss(who + " sent something unexpected");
    }
  }
  return ok_status();
}

}  // namespace

std::unique_ptr<GroupFormer> make_head_former(FormerBase base) {
  return std::make_unique<HeadFormer>(std::move(base));
}

}  // namespace tensorfold
