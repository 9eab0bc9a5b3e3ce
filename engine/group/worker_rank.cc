// See the header.
#include "engine/group/worker_rank.h"

#include <exception>
#include <string>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

uint16_t wire(GroupMessage kind) { return static_cast<uint16_t>(kind); }

}  // namespace

WorkerRank::WorkerRank(const WorkerRankParts& parts, const RankShape& shape, uint64_t self)
    : parts_(parts), shape_(shape), news_(parts.tier) {
  TF_CHECK(self != 0);
  hello_.self = self;
  hello_.clean = true;
}

Status WorkerRank::serve(Group& group, const StopFlag& stop, const std::function<void()>& working) {
  synced_ = told_leaving_ = flowing_ = false;
  may_leave_.store(false, std::memory_order_release);
  Status status = group.send(wire(GroupMessage::kHello), encode(hello_));
  while (status.ok() && !stop.requested()) status = turn(group, working);
  if (status.ok()) {
    status = unavailable("this rank is stopping", "aborted");
    group.close("rank " + std::to_string(group.rank()) + " stops");
  }
  group.abort(status);
  parts_.seat.seat(nullptr);
  parts_.gate.alone();
  may_leave_.store(true, std::memory_order_release);
  busy_.store(0, std::memory_order_relaxed);
  const Status cause = group.failure();
  return cause.ok() || status.reason() == "peer_left" ? status : cause;
}

Status WorkerRank::turn(Group& group, const std::function<void()>& working) {
  if (flowing_) return flow(group);
  const int64_t wait_ms = news_.watching() ? kWorkerReadingMs : kWorkerIdleMs;
  TF_ASSIGN_OR_RETURN(const LinkArrival arrival, group.receive(0, wait_ms));
  if (arrival.what == LinkArrival::Kind::kClosed)
    return unavailable("the head has left: " + arrival.reason, "peer_left");
  if (arrival.what == LinkArrival::Kind::kMessage)
    TF_RETURN_IF_ERROR(take_message(group, arrival, working));
  parts_.report.tick(&group);
  return synced_ ? tell(group) : ok_status();
}

// What there is to tell goes ahead of the wait: it ends with the next step, or when there is none.
Status WorkerRank::flow(Group& group) {
  TF_ASSIGN_OR_RETURN(const std::vector<std::byte> body, flow_.receive(group.collective()));
  flowing_ = false;
  if (!body.empty()) TF_RETURN_IF_ERROR(step(body));
  parts_.report.tick(&group);
  return tell(group);
}

Status WorkerRank::take_message(Group& group, const LinkArrival& arrival,
                                const std::function<void()>& working) {
  switch (static_cast<GroupMessage>(arrival.kind)) {
    case GroupMessage::kCommands:
      return catch_up(arrival);
    case GroupMessage::kSync:
      TF_RETURN_IF_ERROR(sync(group, arrival));
      working();
      return ok_status();
    case GroupMessage::kStep:
      return step(arrival.body);
    case GroupMessage::kMayLeave:
      may_leave_.store(told_leaving_, std::memory_order_release);
      return ok_status();
    default:
      return data_loss("the head sent a message of the unknown kind " +
                       std::to_string(arrival.kind));
  }
}

// ---------------------------------------------------------------- forming

Status WorkerRank::sync(Group& group, const LinkArrival& arrival) {
  Sync order;
  TF_RETURN_IF_ERROR(decode(arrival.body, order));
  if (synced_) return data_loss("the head syncs twice");
  if (order.keep &&
      (!hello_.clean || hello_.head != order.self || hello_.applied != order.sequence))
    return internal_error("the head keeps a memory that this rank does not share");
  news_.forget_staged();
  if (!order.keep) {
    parts_.gate.alone();
#ifndef TF_PLANTED_FAULT  // tests: this rank remembers what the others forget
    reset_rank(parts_.local, shape_);
#endif
    open_.clear();
    hello_.clean = true;
  }
  hello_.head = order.self;
  hello_.applied = order.sequence;
  TF_RETURN_IF_ERROR(group.send(wire(GroupMessage::kSynced), {}));
  for (const News& part : news_.everything()) {
    TF_RETURN_IF_ERROR(group.send(wire(GroupMessage::kNews), encode(part)));
    told_accepts_ = part.accepts;
  }
  parts_.seat.seat(&group.collective());
  parts_.gate.join(group.collective(), group.generation());
  synced_ = true;
  parts_.report.formed(group);
  parts_.report.tick_now(&group);
  return ok_status();
}

// The plan before the break did not get here: its commands did elsewhere.
Status WorkerRank::catch_up(const LinkArrival& arrival) {
  StepOrder order;
  TF_RETURN_IF_ERROR(decode(arrival.body, order));
  if (synced_ || order.sequence != hello_.applied + 1)
    return data_loss("the head sent commands out of turn");
  TF_ASSIGN_OR_RETURN(const StepPlan plan, decode_step_plan(order.plan));
  parts_.gate.alone();
  parts_.gate.expect(0);
  return run(order, commands_of(plan));
}

// ---------------------------------------------------------------- steps

Status WorkerRank::step(std::span<const std::byte> body) {
  StepOrder order;
  TF_RETURN_IF_ERROR(decode(body, order));
  if (!synced_ || order.sequence != hello_.applied + 1)
    return unavailable("plan " + std::to_string(order.sequence) + " came after plan " +
                           std::to_string(hello_.applied),
                       kReasonOutOfStep);
  TF_ASSIGN_OR_RETURN(const StepPlan plan, decode_step_plan(order.plan));
  parts_.gate.expect(order_digest(body));
  TF_RETURN_IF_ERROR(run(order, plan));
  parts_.gate.note(results_);
  flowing_ = order.flows;
  steps_.fetch_add(1, std::memory_order_relaxed);
  return ok_status();
}

Status WorkerRank::run(const StepOrder& order, const StepPlan& plan) {
  news_.take_order(order);
  Status status;
  try {
    status = parts_.local.run(plan, results_);
  } catch (const std::exception& e) {
    hello_.clean = false;
    status = internal_error("step " + std::to_string(plan.step) + ": " + e.what());
  }
  hello_.applied = order.sequence;
  if (!parts_.gate.commands_done() || status.reason() == kReasonOutOfStep) hello_.clean = false;
  news_.watch(plan);
  count_open(plan);
  return status;
}

void WorkerRank::count_open(const StepPlan& plan) {
  for (const CacheCommand& c : plan.commands) {
    if (c.kind == CacheCommand::Kind::kOpenSlot) open_.insert(c.slot);
    if (c.kind == CacheCommand::Kind::kCloseSlot) open_.erase(c.slot);
  }
  busy_.store(static_cast<int>(open_.size()), std::memory_order_relaxed);
}

// ---------------------------------------------------------------- news

Status WorkerRank::tell(Group& group) {
  const bool leaving = leaving_.load(std::memory_order_acquire);
  if (leaving != told_leaving_) {
    told_leaving_ = leaving;
    may_leave_.store(false, std::memory_order_release);
    const GroupMessage kind = leaving ? GroupMessage::kLeaving : GroupMessage::kStaying;
    TF_RETURN_IF_ERROR(group.send(wire(kind), {}));
  }
  const News news = news_.take();
  if (news.empty() && news.accepts == told_accepts_) return ok_status();
  told_accepts_ = news.accepts;
  return group.send(wire(GroupMessage::kNews), encode(news));
}

}  // namespace tensorfold
