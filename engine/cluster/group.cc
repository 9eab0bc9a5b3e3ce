// One generation: messages over the control connections, the collective behind a guard that counts
// and that breaks the group when an exchange fails, liveness beside them.
// Owner: see group.h. Deliberately reads control connections only when asked: an engine that does
// not ask does not lose messages, its peer's send waits.
#include "engine/cluster/group.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "engine/cluster/device_exchange.h"
#include "engine/cluster/group_parts.h"
#include "engine/cluster/link_address.h"
#include "engine/cluster/liveness.h"

namespace tensorfold {

LinkTimers LinkTimers::divided(int64_t by) const {
  TF_CHECK(by >= 1);
  const auto part = [by](int64_t ms, int64_t least_ms = 1) {
    return std::max<int64_t>(least_ms, ms / by);
  };
  // Tests wait for silence and pauses, not for these, which a loaded machine needs.
  constexpr int64_t kHandshakeMsLeast = 1000, kMeshMsLeast = 5000;
  LinkTimers t;
  t.heartbeat_ms = part(heartbeat_ms);
  t.silent_ms = part(silent_ms);
  t.connect_ms = part(connect_ms, kHandshakeMsLeast);
  t.handshake_ms = part(handshake_ms, kHandshakeMsLeast);
  t.mesh_ms = part(mesh_ms, kMeshMsLeast);
  t.retry_first_ms = part(retry_first_ms);
  t.retry_most_ms = part(retry_most_ms);
  t.send_ms = part(send_ms);
  t.exchange_ms = part(exchange_ms);
  return t;
}

namespace {

class GuardedCollective final : public Collective, public DeviceExchange {
 public:
  GuardedCollective(std::unique_ptr<Collective> inner, std::shared_ptr<GroupHealth> health,
                    const Clock& clock)
      : inner_(std::move(inner)),
        device_(inner_->on_device()),
        health_(std::move(health)),
        clock_(clock) {}
  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }

  Status all_gather(std::span<const std::byte> in, std::span<std::byte> out) override {
    if (health_->broken().requested()) return health_->failure();
    const int64_t start_us = clock_.monotonic_us();
    TF_RETURN_IF_ERROR(judge(inner_->all_gather(in, out)));
    // One writer, the engine thread; readers want no order between the three.
    add(exchanges_, 1);
    add(us_, clock_.monotonic_us() - start_us);
    add(bytes_, static_cast<int64_t>(in.size()));
    return ok_status();
  }
  // Not counted: a rank waits in it for the next plan, not for partial results.
  Status broadcast(std::span<std::byte> data, int root) override {
    if (health_->broken().requested()) return health_->failure();
    return judge(inner_->broadcast(data, root));
  }

  DeviceExchange* on_device() override { return device_ == nullptr ? nullptr : this; }
  void begin() override { device_->begin(); }
  Status end() override {
    const Status status = judge(device_->end());
    return health_->broken().requested() ? health_->failure() : status;
  }
  // Not counted: recorded ones run without a call.
  Status gather(const void* in, void* out, size_t bytes, void* queue) override {
    if (health_->broken().requested()) return health_->failure();
    return judge(device_->gather(in, out, bytes, queue));
  }

  void fill(LinkCounters& counters) const {
    counters.exchanges = exchanges_.load(std::memory_order_relaxed);
    counters.exchange_us = us_.load(std::memory_order_relaxed);
    counters.exchange_bytes = bytes_.load(std::memory_order_relaxed);
  }

 private:
  Status judge(const Status& status) {
    if (status.ok()) return status;
    health_->fail(status);
    return health_->failure();
  }
  static void add(std::atomic<int64_t>& to, int64_t value) {
    to.store(to.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  }
  const std::unique_ptr<Collective> inner_;
  DeviceExchange* const device_;  // the inner one's; nullptr: it has none
  const std::shared_ptr<GroupHealth> health_;
  const Clock& clock_;
  std::atomic<int64_t> exchanges_{0}, us_{0}, bytes_{0};
};

// One control connection and what has come over it.
struct Line {
  std::unique_ptr<Channel> channel;
  std::vector<std::byte> body;  // of the message that is coming in
  bool whole = false;           // `body` is a message, of `kind`
  bool ended = false;           // the peer closed it,
  int64_t ended_us = 0;         // then
  uint16_t kind = 0;
};

class LinkGroup final : public Group {
 public:
  explicit LinkGroup(GroupParts parts)
      : rank_(parts.rank),
        world_size_(parts.world_size),
        generation_(parts.generation),
        timers_(parts.timers),
        clock_(*parts.clock),
        health_(parts.health),
        collective_(std::move(parts.collective), parts.health, *parts.clock),
        lines_(static_cast<size_t>(parts.world_size)) {
    for (size_t r = 0; r < lines_.size(); ++r) {
      if (!parts.controls[r]) continue;
      // Above our own bound, which names the reason.
      set_link_options(parts.controls[r]->fd(), 2 * timers_.send_ms);
      lines_[r].channel = std::move(parts.controls[r]);
    }
  }
  // Liveness first: its end shuts the control connections.
  ~LinkGroup() override { liveness_.reset(); }

  Status start(std::vector<std::unique_ptr<Channel>> heartbeats) {
    Liveness::Settings settings;
    settings.rank = rank_;
    settings.timers = timers_;
    settings.clock = &clock_;
    settings.health = health_;
    settings.on_end = [this] {
      for (Line& line : lines_) {
        if (line.channel) line.channel->shut();
      }
    };
    TF_ASSIGN_OR_RETURN(liveness_, Liveness::start(std::move(settings), std::move(heartbeats)));
    return ok_status();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  uint64_t generation() const override { return generation_; }
  Collective& collective() override { return collective_; }

  Status send(uint16_t kind, std::span<const std::byte> body) override {
    for (size_t r = 0; r < lines_.size(); ++r) {
      if (lines_[r].channel) TF_RETURN_IF_ERROR(send_to(static_cast<int>(r), kind, body));
    }
    return ok_status();
  }
  Status send_to(int rank, uint16_t kind, std::span<const std::byte> body) override;
  Result<LinkArrival> receive(int rank, int64_t timeout_ms) override;
  bool pending(int rank) override {
    Line& line = line_of(rank);
    return advance(line).ok() && (line.whole || line.ended);
  }

  void close(std::string_view reason) override {
    const Status why = unavailable("this rank left the group: " + std::string(reason), "aborted");
    health_->leaving(why);
    if (!health_->broken().requested()) liveness_->leave(reason.substr(0, kLinkReasonBytesMax));
    abort(why);
  }
  void abort(Status why) override { health_->fail(std::move(why)); }
  Status failure() const override { return health_->failure(); }
  void on_failure(std::function<void(const Status&)> listener) override {
    health_->listen(std::move(listener));
  }
  Status publish(LinkFields report) override { return liveness_->publish(report); }
  std::vector<PeerStatus> peers() const override { return liveness_->peers(); }
  LinkCounters counters() const override {
    LinkCounters counters;
    collective_.fill(counters);
    counters.messages_sent = sent_.load(std::memory_order_relaxed);
    counters.messages_received = received_.load(std::memory_order_relaxed);
    return counters;
  }

 private:
  Line& line_of(int rank) {
    TF_CHECK(rank >= 0 && rank < world_size_);
    Line& line = lines_[static_cast<size_t>(rank)];
    TF_CHECK_MSG(line.channel != nullptr, "no control connection to that rank");
    return line;
  }
  LinkWait wait_ms(int64_t ms) const {
    return {&clock_, clock_.monotonic_us() + ms * 1000, nullptr, &health_->broken()};
  }
  // kUnavailable: broken, other than by a peer that left in order.
  Status working() const {
    if (!health_->broken().requested()) return ok_status();
    const Status why = health_->failure();
    return why.reason() == "peer_left" ? ok_status() : why;
  }
  Status advance(Line& line);
  bool left_by(int rank, std::string& reason) const {
    const auto left = liveness_->left();
    if (!left || left->first != rank) return false;
    reason = left->second;
    return true;
  }

  const int rank_, world_size_;
  const uint64_t generation_;
  const LinkTimers timers_;
  const Clock& clock_;
  const std::shared_ptr<GroupHealth> health_;
  GuardedCollective collective_;
  std::vector<Line> lines_;  // by rank
  std::unique_ptr<Liveness> liveness_;
  std::atomic<int64_t> sent_{0}, received_{0};
};

Status LinkGroup::send_to(int rank, uint16_t kind, std::span<const std::byte> body) {
  if (body.size() > kLinkMessageBytesMax)
    return invalid_argument("a message of " + std::to_string(body.size()) + " bytes is over " +
                            std::to_string(kLinkMessageBytesMax));
  Line& line = line_of(rank);
  if (health_->broken().requested()) return health_->failure();
  const LinkWait wait = wait_ms(timers_.send_ms);
  size_t done = 0;
  do {
    const size_t part = std::min(kFrameBytesMax, body.size() - done);
    const bool more = done + part < body.size();
    const Status sent = line.channel->send(FrameType::kMessage, body.subspan(done, part), wait,
                                           kind, more ? kFrameMore : uint8_t{0});
    if (!sent.ok()) {
      const bool late = sent.code() == StatusCode::kDeadline;
      health_->fail(
          unavailable("rank " + std::to_string(rank) +
                          (late ? " does not read its messages" : " closed its control connection"),
                      late ? "slow" : "peer_closed"));
      return health_->failure();
    }
    done += part;
  } while (done < body.size());
  sent_.fetch_add(1, std::memory_order_relaxed);
  return ok_status();
}

// Reads what is there until a message is whole. A closed connection is not yet a failure: the
// heartbeats know whether the peer left in order.
Status LinkGroup::advance(Line& line) {
  TF_RETURN_IF_ERROR(working());
  while (!line.whole && !line.ended) {
    const FrameIo io = line.channel->next();
    if (io == FrameIo::kBlocked) return ok_status();
    if (io == FrameIo::kClosed) {
      line.ended = true;
      line.ended_us = clock_.monotonic_us();
      return ok_status();
    }
    const FrameHeader header = line.channel->in().header();
    const size_t held = line.body.size();
    bool good = io == FrameIo::kReady && header.type == FrameType::kMessage &&
                held + header.bytes <= kLinkMessageBytesMax &&
                (held == 0 || line.kind == header.kind);
    if (good) {
      line.body.resize(held + header.bytes);
      good = line.channel->in().take(std::span(line.body).subspan(held));
    }
    if (!good) {
      health_->fail(unavailable(line.channel->peer() + " sent a damaged message", "link"));
      return health_->failure();
    }
    line.kind = header.kind;
    line.whole = (header.flags & kFrameMore) == 0;
  }
  return ok_status();
}

Result<LinkArrival> LinkGroup::receive(int rank, int64_t timeout_ms) {
  Line& line = line_of(rank);
  const LinkWait wait = wait_ms(timeout_ms);
  for (;;) {
    TF_RETURN_IF_ERROR(advance(line));
    LinkArrival arrival;
    if (line.whole) {
      arrival.what = LinkArrival::Kind::kMessage;
      arrival.kind = line.kind;
      arrival.body = std::exchange(line.body, {});
      line.whole = false;
      received_.fetch_add(1, std::memory_order_relaxed);
      return arrival;
    }
    if (left_by(rank, arrival.reason)) {
      arrival.what = LinkArrival::Kind::kClosed;
      // The heartbeats' thread is about to say the same.
      health_->fail(
          unavailable(line.channel->peer() + " left the group: " + arrival.reason, "peer_left"));
      return arrival;
    }
    if (health_->broken().requested()) return health_->failure();
    // Past the end of the stream only the heartbeats have news: a goodbye, or their own end.
    const int64_t told_us = line.ended_us + 2 * timers_.heartbeat_ms * 1000;
    if (line.ended && clock_.monotonic_us() >= told_us) {
      health_->fail(
          unavailable(line.channel->peer() + " closed its control connection", "peer_closed"));
      return health_->failure();
    }
    const int64_t until_us = line.ended ? std::min(told_us, wait.deadline_us) : wait.deadline_us;
    const Status waited =
        wait_ready(line.ended ? -1 : line.channel->fd(), POLLIN, wait.until(until_us));
    if (clock_.monotonic_us() >= wait.deadline_us) return arrival;
    if (waited.code() == StatusCode::kDeadline) continue;
    if (!waited.ok() && waited.code() != StatusCode::kCancelled) return waited;
  }
}

}  // namespace

Result<std::unique_ptr<Group>> make_group(GroupParts parts) {
  auto heartbeats = std::move(parts.heartbeats);
  auto group = std::make_unique<LinkGroup>(std::move(parts));
  TF_RETURN_IF_ERROR(group->start(std::move(heartbeats)));
  return std::unique_ptr<Group>(std::move(group));
}

}  // namespace tensorfold
