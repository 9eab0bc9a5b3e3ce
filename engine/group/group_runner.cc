// See the header.
#include "engine/group/group_runner.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

uint16_t wire(GroupMessage kind) { return static_cast<uint16_t>(kind); }

}  // namespace

GroupRunner::GroupRunner(const GroupRunnerParts& parts, const RankShape& shape, int world_size,
                         uint64_t self, int64_t sync_ms)
    : parts_(parts),
      shape_(shape),
      self_(self),
      sync_ms_(std::max<int64_t>(1, sync_ms)),
      workers_(static_cast<size_t>(world_size - 1)) {
  TF_CHECK(world_size >= 2 && self != 0);
}

GroupRunner::~GroupRunner() {
  if (!group_) return;
  idle();
  group_->close("the head stops");
  parts_.seat.seat(nullptr);
  parts_.gate.alone();
  parts_.forming.leaving();
}

// ---------------------------------------------------------------- steps

Status GroupRunner::run_here(const StepPlan& plan, std::vector<SampledTokens>& results) {
  try {
    return parts_.local.run(plan, results);
  } catch (const std::exception& e) {
    clean_ = false;
    return internal_error("step " + std::to_string(plan.step) + ": " + e.what());
  }
}

// While the ranks are apart.
void GroupRunner::run_alone(const StepPlan& plan) {
  parts_.gate.alone();
  std::vector<SampledTokens> results;
  parts_.gate.expect(0);
  if (!run_here(plan, results).ok()) clean_ = false;
}

Status GroupRunner::run(const StepPlan& plan, std::vector<SampledTokens>& results) {
  if (!group_) {
    clean_ = false;  // these commands are carried out nowhere
    return unavailable("the ranks are not together", "peer_lost");
  }
  StepOrder order;
  order.sequence = ++sequence_;
  if (parts_.tier != nullptr) {
    parts_.tier->note_plan(plan);
    parts_.tier->take_orders(order);
  }
  order.flows = !plan.slices.empty();
  order.plan = encode_step_plan(plan);
  last_ = encode(order);
  const Status sent = send_plan(last_, order.flows);
  if (!sent.ok()) {
    // Some workers may have it: then all carry out its commands.
    run_alone(commands_of(plan));
    return let_go(sent);
  }
  parts_.gate.expect(order_digest(last_));
  const Status status = run_here(plan, results);
  if (!parts_.gate.commands_done() || status.reason() == kReasonOutOfStep) clean_ = false;
  if (!status.ok()) return let_go(status);
  parts_.gate.note(results);
  return ok_status();
}

// The way that the last plan said; `flows`: where workers wait after it.
Status GroupRunner::send_plan(std::span<const std::byte> body, bool flows) {
  const bool broadcast = std::exchange(flowing_, flows);
  return broadcast ? flow_.send(group_->collective(), body)
                   : group_->send(wire(GroupMessage::kStep), body);
}

void GroupRunner::idle() {
  if (!group_ || !flowing_) return;
  flowing_ = false;
  (void)flow_.send(group_->collective(), {});  // a failure is the group's: check() finds it
}

// The group is broken. Its own account of why comes first: an exchange only knows that it ended.
Status GroupRunner::let_go(const Status& why) {
  flowing_ = false;
  if (group_) {
    group_->abort(why);
    const Status cause = group_->failure();
    parts_.seat.seat(nullptr);
    parts_.gate.alone();
    parts_.forming.leaving();
    group_.reset();
    parts_.forming.again();
    if (parts_.tier != nullptr) parts_.tier->apart();
    const Status& said = cause.ok() ? why : cause;
    parts_.report.lost(said.message());
    parts_.log.write(LogLevel::kError, "the group is broken: " + said.message(),
                     {{"TF_EVENT", "group_lost"}});
    return said;
  }
  return why;
}

// ---------------------------------------------------------------- while together

Status GroupRunner::check() {
  if (!group_) return unavailable("the ranks are not together", "peer_lost");
  const Status status = group_->failure();
  if (!status.ok()) return let_go(status);
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Status taken = take_messages(static_cast<int>(i) + 1);
    if (!taken.ok()) return let_go(taken);
  }
  parts_.report.tick(group_.get());
  return ok_status();
}

Status GroupRunner::take_messages(int rank) {
  while (group_->pending(rank)) {
    TF_ASSIGN_OR_RETURN(const LinkArrival arrival, group_->receive(rank, 0));
    if (arrival.what == LinkArrival::Kind::kIdle) break;
    TF_RETURN_IF_ERROR(take_message(rank, arrival));
  }
  return ok_status();
}

Status GroupRunner::take_message(int rank, const LinkArrival& arrival) {
  if (arrival.what == LinkArrival::Kind::kClosed)
    return unavailable(rank_name(rank) + " has left: " + arrival.reason, "peer_left");
  Worker& worker = workers_[static_cast<size_t>(rank - 1)];
  switch (static_cast<GroupMessage>(arrival.kind)) {
    case GroupMessage::kNews: {
      News news;
      TF_RETURN_IF_ERROR(decode(arrival.body, news));
      if (parts_.tier != nullptr) parts_.tier->take_news(rank, news);
      return ok_status();
    }
    case GroupMessage::kLeaving:
    case GroupMessage::kStaying:
      worker.leaving = static_cast<GroupMessage>(arrival.kind) == GroupMessage::kLeaving;
      worker.may_leave = false;
      return ok_status();
    default:
      return data_loss(rank_name(rank) + " sent a message of the unknown kind " +
                       std::to_string(arrival.kind));
  }
}

std::string GroupRunner::leaving() const {
  for (size_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].leaving) return rank_name(static_cast<int>(i) + 1) + " is being stopped";
  return "";
}

void GroupRunner::resting() {
  for (size_t i = 0; group_ && i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (!worker.leaving || worker.may_leave) continue;
    worker.may_leave = true;
    (void)group_->send_to(static_cast<int>(i) + 1, wire(GroupMessage::kMayLeave), {});
  }
}

// ---------------------------------------------------------------- together again

std::optional<GroupLife::Regained> GroupRunner::regain(std::string& waits_for) {
  if (group_) (void)let_go(unavailable("the step failed", "aborted"));
  parts_.report.tick(nullptr);
  std::unique_ptr<Group> group = parts_.forming.take(kRegainWaitUs);
  waits_for = parts_.forming.text();
  if (!group) return std::nullopt;
  Regained out;
  const Status status = sync(*group, out.kept);
  if (!status.ok()) {
    parts_.log.warning("the group broke while it was formed: " + status.message());
    waits_for = status.message();
    group->abort(status);
    parts_.forming.leaving();
    group.reset();
    parts_.forming.again();
    return std::nullopt;
  }
  group_ = std::move(group);
  parts_.seat.seat(&group_->collective());
  parts_.gate.join(group_->collective(), group_->generation());
  parts_.report.formed(*group_);
  parts_.report.tick_now(group_.get());
  parts_.log.write(LogLevel::kNotice,
                   std::string("the group stands, its caches are ") + (out.kept ? "kept" : "empty"),
                   {{"TF_EVENT", "group_formed"}});
  return out;
}

Result<std::vector<std::byte>> GroupRunner::expect_message(Group& group, int rank,
                                                           GroupMessage kind) {
  TF_ASSIGN_OR_RETURN(LinkArrival arrival, group.receive(rank, sync_ms_));
  if (arrival.what == LinkArrival::Kind::kClosed)
    return unavailable(rank_name(rank) + " has left: " + arrival.reason, "peer_left");
  if (arrival.what == LinkArrival::Kind::kIdle)
    return unavailable(rank_name(rank) + " did not answer for " + std::to_string(sync_ms_) + " ms",
                       "peer_lost");
  if (arrival.kind != wire(kind))
    return data_loss(rank_name(rank) + " sent message " + std::to_string(arrival.kind) + " where " +
                     std::to_string(wire(kind)) + " was due");
  return std::move(arrival.body);
}

Status GroupRunner::sync(Group& group, bool& kept) {
  const size_t count = workers_.size();
  std::vector<Hello> hellos(count);
  kept = clean_ && sequence_ > 0;
  for (size_t i = 0; i < count; ++i) {
    TF_ASSIGN_OR_RETURN(const auto body,
                        expect_message(group, static_cast<int>(i) + 1, GroupMessage::kHello));
    TF_RETURN_IF_ERROR(decode(body, hellos[i]));
    const Hello& h = hellos[i];
    const bool near = h.applied == sequence_ || h.applied + 1 == sequence_;
    kept = kept && h.clean && h.head == self_ && h.self == workers_[i].self && near;
  }
  for (size_t i = 0; i < count; ++i) {
    const int rank = static_cast<int>(i) + 1;
    if (kept && hellos[i].applied != sequence_)
      TF_RETURN_IF_ERROR(group.send_to(rank, wire(GroupMessage::kCommands), last_));
    TF_RETURN_IF_ERROR(
        group.send_to(rank, wire(GroupMessage::kSync), encode(Sync{self_, kept, sequence_})));
  }
  for (size_t i = 0; i < count; ++i) {
    const int rank = static_cast<int>(i) + 1;
    TF_ASSIGN_OR_RETURN(const auto body, expect_message(group, rank, GroupMessage::kSynced));
    if (!body.empty()) return data_loss(rank_name(rank) + ": synced has a body");
    TF_RETURN_IF_ERROR(take_records(group, rank));
    workers_[i] = {hellos[i].self, false, false};
  }
  return ok_status();
}

Status GroupRunner::take_records(Group& group, int rank) {
  for (News news; !news.last;) {
    TF_ASSIGN_OR_RETURN(const auto body, expect_message(group, rank, GroupMessage::kNews));
    TF_RETURN_IF_ERROR(decode(body, news));
    if (!news.whole) return data_loss(rank_name(rank) + ": news before all records were told");
    if (parts_.tier != nullptr) parts_.tier->take_news(rank, news);
  }
  return ok_status();
}

Status GroupRunner::resume(const StepPlan& closing, const Regained& regained) {
  if (regained.kept) {
    std::vector<SampledTokens> results;
    return closing.commands.empty() ? ok_status() : run(closing, results);
  }
  // The workers have forgotten everything; so does this rank.
  Collective& collective = group_->collective();
  parts_.gate.alone();
  reset_rank(parts_.local, shape_);
  keep_forgets(parts_.local, closing);
  parts_.gate.join(collective, group_->generation());
  clean_ = true;
  return ok_status();
}

}  // namespace tensorfold
