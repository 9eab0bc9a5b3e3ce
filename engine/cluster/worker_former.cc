// A worker's side of forming: connects to the head until it is welcomed, waits with it for the
// others, connects to the ranks below its own, takes connections of those above, and starts when
// the head says so. Whatever fails is tried again from the start, with growing pauses. Owner: the
// forming thread. Deliberately gives up on nothing but a stop: what is refused today is repaired on
// another machine.
#include <poll.h>

#include <algorithm>
#include <array>

#include "engine/cluster/forming.h"

namespace tensorfold {
namespace {

class WorkerFormer final : public GroupFormer {
 public:
  WorkerFormer(FormerBase base, LinkAddress head) : base_(std::move(base)), head_(head) {}

  int port() const override { return base_.gate ? base_.gate->port() : 0; }

  Result<std::unique_ptr<Group>> form(const StopFlag& stop, const TellProgress& progress) override;

 private:
  const LinkTimers& timers() const { return base_.options.timers; }
  void tell(FormState state, const std::string& text) {
    (*progress_)({state, text, {}, attempts_});
  }
  Result<std::unique_ptr<Group>> attempt(const StopFlag& stop);
  Result<Roster> wait_for_roster(Channel& control, const StopFlag& stop);
  Status connect_mesh(Mesh& mesh, Channel& control, const Roster& roster, int64_t deadline_us,
                      const StopFlag& stop);
  Status take_callers(Mesh& mesh, Channel& control, int64_t deadline_us, const StopFlag& stop);
  int64_t pause_ms();

  FormerBase base_;
  const LinkAddress head_;
  const TellProgress* progress_ = nullptr;
  int64_t attempts_ = 0;
  int64_t backoff_ms_ = 0;
  std::string logged_;  // the last reason: the same one again is not news
};

Result<std::unique_ptr<Group>> WorkerFormer::form(const StopFlag& stop,
                                                  const TellProgress& progress) {
  progress_ = &progress;
  attempts_ = 0;
  backoff_ms_ = timers().retry_first_ms;
  tell(FormState::kConnecting, "connecting to the head at " + head_.text());
  while (!stop.requested()) {
    ++attempts_;
    Result<std::unique_ptr<Group>> group = attempt(stop);
    if (group.ok()) {
      logged_.clear();
      return group;
    }
    if (stop.requested()) break;
    const Status& why = group.status();
    if (why.message() != logged_) base_.log.warning("link: " + why.message());
    logged_ = why.message();
    const bool connecting = why.code() == StatusCode::kIo || why.code() == StatusCode::kDeadline;
    tell(connecting ? FormState::kConnecting : FormState::kRefused,
         "no group yet: " + why.message());
    (void)wait_ready(-1, 0, base_.wait_ms(pause_ms(), stop));
  }
  return Status(StatusCode::kCancelled, "forming was stopped");
}

// Doubles up to the most; a quarter more or less at random, so that ranks do not stay in step.
int64_t WorkerFormer::pause_ms() {
  const int64_t base = backoff_ms_;
  backoff_ms_ = std::min(2 * backoff_ms_, timers().retry_most_ms);
  const auto spread = static_cast<uint64_t>(base / 2 + 1);
  return base - base / 4 + static_cast<int64_t>(random_u64() % spread);
}

Result<std::unique_ptr<Group>> WorkerFormer::attempt(const StopFlag& stop) {
  TF_RETURN_IF_ERROR(base_.open_gate());
  const GateOpening opening(base_.gate.get());
  TF_ASSIGN_OR_RETURN(std::unique_ptr<Channel> control,
                      base_.call(head_, ChannelUse::kControl, 0, timers().silent_ms, stop));
  backoff_ms_ = timers().retry_first_ms;
  base_.log.info("link: joined the head at " + head_.text());
  tell(FormState::kWaiting, "joined the head at " + head_.text());
  TF_ASSIGN_OR_RETURN(const Roster roster, wait_for_roster(*control, stop));
  tell(FormState::kJoining, "connecting the ranks");
  const int64_t deadline_us = base_.clock.monotonic_us() + timers().mesh_ms * 1000;
  LinkWait wait = base_.wait_ms(0, stop);
  wait.deadline_us = deadline_us;
  Mesh mesh(base_.options.rank, base_.options.world_size, roster.generation);
  TF_RETURN_IF_ERROR(connect_mesh(mesh, *control, roster, deadline_us, stop));
  Result<GroupParts> parts = join_transport(base_, mesh, roster.invitation, deadline_us, stop);
  if (!parts.ok()) {
    (void)control->send(FrameType::kGoodbye, encode_text(parts.status().message()), wait);
    return parts.status();
  }
  TF_RETURN_IF_ERROR(control->send(FrameType::kReady, {}, wait));
  Result<Frame> go = control->receive(wait);
  if (!go.ok()) return go.status().with_context("waiting for the head's start");
  if (go->header.type != FrameType::kGo)
    return unavailable("the head gave up: " + decode_text(go->payload).value_or("no reason"));
  parts->generation = roster.generation;
  parts->controls[0] = std::move(control);
  base_.log.info("link: a group of " + std::to_string(base_.options.world_size) +
                 " ranks stands, over " + std::string(base_.transport.name()));
  return make_group(std::move(*parts));
}

Result<Roster> WorkerFormer::wait_for_roster(Channel& control, const StopFlag& stop) {
  for (;;) {
    const LinkWait wait = base_.wait_ms(timers().silent_ms, stop);
    Result<Frame> frame = control.receive(wait);
    if (!frame.ok()) return frame.status().with_context("waiting with the head");
    const std::optional<std::string> text = decode_text(frame->payload);
    if (frame->header.type == FrameType::kForming && text) {
      TF_RETURN_IF_ERROR(control.send(FrameType::kForming, frame->payload, wait));
      tell(FormState::kWaiting, "joined; the head is " + *text);
    } else if (frame->header.type == FrameType::kGoodbye && text) {
      return unavailable("the head gave up: " + *text);
    } else if (frame->header.type == FrameType::kRoster) {
      std::optional<Roster> roster = decode_roster(frame->payload);
      if (roster && roster->workers.size() + 1 == static_cast<size_t>(base_.options.world_size))
        return std::move(*roster);
      return data_loss("the head's roster can't be read");
    } else {
      return data_loss("the head sent something unexpected");
    }
  }
}

// Downwards first: rank 0 connects to nobody and takes everyone, so by induction nobody waits in a
// circle.
Status WorkerFormer::connect_mesh(Mesh& mesh, Channel& control, const Roster& roster,
                                  int64_t deadline_us, const StopFlag& stop) {
  for (int r = 0; r < base_.options.rank; ++r) {
    LinkAddress to = head_;
    if (r > 0) {
      const RosterEntry& entry = roster.workers[static_cast<size_t>(r) - 1];
      TF_ASSIGN_OR_RETURN(to, LinkAddress::parse("roster", entry.address, entry.port));
    }
    for (const ChannelUse use : {ChannelUse::kHeartbeat, ChannelUse::kExchange}) {
      const int64_t left_ms = (deadline_us - base_.clock.monotonic_us()) / 1000;
      Result<std::unique_ptr<Channel>> channel =
          base_.call(to, use, roster.generation, left_ms, stop);
      if (!channel.ok())
        return channel.status().with_context("connecting to rank " + std::to_string(r));
      mesh.add(r, use, std::move(channel).value());
    }
  }
  return take_callers(mesh, control, deadline_us, stop);
}

Status WorkerFormer::take_callers(Mesh& mesh, Channel& control, int64_t deadline_us,
                                  const StopFlag& stop) {
  while (!mesh.complete()) {
    std::array<pollfd, 3> set{
        {{stop.fd(), POLLIN, 0}, {base_.gate->ready_fd(), POLLIN, 0}, {control.fd(), POLLIN, 0}}};
    const int64_t now = base_.clock.monotonic_us();
    if (now >= deadline_us) return {StatusCode::kDeadline, "the ranks did not connect in time"};
    (void)::poll(set.data(), set.size(), poll_ms(now, deadline_us));
    if (stop.requested()) return {StatusCode::kCancelled, "forming was stopped"};
    while (std::optional<GateCaller> caller = base_.gate->take()) {
      const std::string wrong = mesh.answer(std::move(*caller));
      if (!wrong.empty()) base_.log.warning("link: " + wrong);
    }
    // The head has nothing to say before the mesh stands, but that it gave up.
    if (set[2].revents != 0) {
      const Result<Frame> frame = control.receive_ready();
      if (frame.ok() || frame.status().code() != StatusCode::kDeadline)
        return unavailable("the head gave up while the ranks connected");
    }
  }
  return ok_status();
}

}  // namespace

std::unique_ptr<GroupFormer> make_worker_former(FormerBase base, LinkAddress head) {
  return std::make_unique<WorkerFormer>(std::move(base), head);
}

}  // namespace tensorfold
