// Groups whose ranks are threads of one process, without sockets: messages and exchanges go through
// memory, time is the test's, and whatever is on its way to a rank can be lost or changed.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/cluster/group.h"

namespace tensorfold::test {

using Bytes = std::vector<std::byte>;
inline constexpr std::chrono::milliseconds kLookMs{1};  // for the test's clock, in every wait

// What happens to what the head sends. Set while no rank is in a step.
struct Faults {
  std::function<bool(int to)> lose;                 // true: it does not arrive, and the link breaks
  std::function<void(int to, Bytes& body)> change;  // on its way
};

// One generation.
struct FakeLink {
  FakeLink(int world, uint64_t number, const Clock& clock_, Faults& faults_)
      : world_size(world), generation(number), clock(clock_), faults(faults_) {}

  struct Exchange {
    std::map<int, Bytes> parts;  // by rank that gave; of a broadcast, by rank that gets
    int done = 0;
  };
  void fail(const Status& why) {
    const std::lock_guard lock(mutex);
    if (failure.ok()) failure = why;
    changed.notify_all();
  }
  template <typename F>
  bool wait(std::unique_lock<std::mutex>& lock, F&& true_now) {
    while (!true_now() && failure.ok()) changed.wait_for(lock, kLookMs);
    return true_now();
  }

  const int world_size;
  const uint64_t generation;
  const Clock& clock;
  Faults& faults;
  std::mutex mutex;
  std::condition_variable changed;
  Status failure;
  std::map<std::pair<int, int>, std::deque<LinkArrival>> lines;  // {from, to}
  std::map<uint64_t, Exchange> exchanges;                        // by number
  std::set<int> in_broadcast;                                    // ranks that wait for one
  int broadcasts = 0, messages = 0;                              // of the head
};

class FakeCollective final : public Collective {
 public:
  FakeCollective(std::shared_ptr<FakeLink> link, int rank) : link_(std::move(link)), rank_(rank) {}
  int rank() const override { return rank_; }
  int world_size() const override { return link_->world_size; }

  Status all_gather(std::span<const std::byte> in, std::span<std::byte> out) override {
    std::unique_lock lock(link_->mutex);
    const uint64_t number = ++number_;
    FakeLink::Exchange& e = link_->exchanges[number];
    e.parts[rank_] = Bytes(in.begin(), in.end());
    link_->changed.notify_all();
    const auto world = static_cast<size_t>(link_->world_size);
    if (!link_->wait(lock, [&] { return e.parts.size() == world; })) return link_->failure;
    for (const auto& [rank, bytes] : e.parts) {
      if (bytes.size() != in.size()) return internal_error("ranks gather different sizes");
      std::memcpy(out.data() + static_cast<size_t>(rank) * in.size(), bytes.data(), in.size());
    }
    if (++e.done == link_->world_size) link_->exchanges.erase(number);
    return ok_status();
  }

  Status broadcast(std::span<std::byte> data, int root) override {
    std::unique_lock lock(link_->mutex);
    FakeLink::Exchange& e = link_->exchanges[++number_];
    if (rank_ == root) return give(e, data);
    link_->in_broadcast.insert(rank_);
    const bool came = link_->wait(lock, [&] { return e.parts.contains(rank_); });
    link_->in_broadcast.erase(rank_);
    if (!came) return link_->failure;
    const Bytes& body = e.parts[rank_];
    if (body.size() != data.size()) return internal_error("a broadcast of another size");
    std::memcpy(data.data(), body.data(), body.size());
    return ok_status();
  }

 private:
  Status give(FakeLink::Exchange& e, std::span<const std::byte> data) {
    if (!link_->failure.ok()) return link_->failure;
    ++link_->broadcasts;
    for (int to = 0; to < link_->world_size; ++to) {
      if (to == rank_) continue;
      if (link_->faults.lose && link_->faults.lose(to)) {
        link_->failure = unavailable("rank " + std::to_string(to) + " is silent", "peer_lost");
        continue;
      }
      Bytes body(data.begin(), data.end());
      if (link_->faults.change) link_->faults.change(to, body);
      e.parts[to] = std::move(body);
    }
    link_->changed.notify_all();
    return link_->failure;
  }

  const std::shared_ptr<FakeLink> link_;
  const int rank_;
  uint64_t number_ = 0;
};

// What has arrived is taken even when the link has broken since: the worst that can happen.
class FakeGroup final : public Group {
 public:
  FakeGroup(std::shared_ptr<FakeLink> link, int rank)
      : link_(link), rank_(rank), collective_(link, rank) {}
  ~FakeGroup() override { abort(unavailable("rank " + std::to_string(rank_) + " is gone")); }

  int rank() const override { return rank_; }
  int world_size() const override { return link_->world_size; }
  uint64_t generation() const override { return link_->generation; }
  Collective& collective() override { return collective_; }

  Status send(uint16_t kind, std::span<const std::byte> body) override {
    if (rank_ != 0) return send_to(0, kind, body);
    Status status;
    for (int to = 1; to < link_->world_size; ++to) {
      const Status sent = send_to(to, kind, body);
      if (status.ok()) status = sent;
    }
    return status;
  }
  Status send_to(int to, uint16_t kind, std::span<const std::byte> body) override {
    const std::lock_guard lock(link_->mutex);
    if (!link_->failure.ok() && rank_ != 0) return link_->failure;
    LinkArrival arrival;
    arrival.what = LinkArrival::Kind::kMessage;
    arrival.kind = kind;
    arrival.body.assign(body.begin(), body.end());
    if (rank_ == 0) {
      ++link_->messages;
      if (link_->faults.lose && link_->faults.lose(to))
        link_->failure = unavailable("rank " + std::to_string(to) + " is silent", "peer_lost");
      else if (link_->faults.change)
        link_->faults.change(to, arrival.body);
    }
    if (link_->failure.ok()) link_->lines[{rank_, to}].push_back(std::move(arrival));
    link_->changed.notify_all();
    return link_->failure;
  }
  Result<LinkArrival> receive(int from, int64_t timeout_ms) override {
    std::unique_lock lock(link_->mutex);
    auto& line = link_->lines[{from, rank_}];
    const int64_t until_us = link_->clock.monotonic_us() + timeout_ms * 1000;
    link_->wait(lock, [&] { return !line.empty() || link_->clock.monotonic_us() >= until_us; });
    if (!line.empty()) {
      LinkArrival arrival = std::move(line.front());
      line.pop_front();
      return arrival;
    }
    if (!link_->failure.ok()) return link_->failure;
    return LinkArrival{};
  }
  bool pending(int from) override {
    const std::lock_guard lock(link_->mutex);
    return !link_->lines[{from, rank_}].empty();
  }

  void close(std::string_view reason) override {
    link_->fail(unavailable("rank " + std::to_string(rank_) + " left: " + std::string(reason),
                            "peer_left"));
  }
  void abort(Status why) override { link_->fail(why); }
  Status failure() const override {
    const std::lock_guard lock(link_->mutex);
    return link_->failure;
  }
  void on_failure(std::function<void(const Status&)>) override {}
  Status publish(LinkFields) override { return ok_status(); }
  std::vector<PeerStatus> peers() const override { return {}; }
  LinkCounters counters() const override { return {}; }

 private:
  const std::shared_ptr<FakeLink> link_;
  const int rank_;
  FakeCollective collective_;
};

// Where ranks come together: form() returns when all of them are in it.
class FakeMeeting {
 public:
  FakeMeeting(int world_size, const Clock& clock) : world_size_(world_size), clock_(clock) {}

  Result<std::unique_ptr<Group>> form(int rank, const StopFlag& stop) {
    std::unique_lock lock(mutex_);
    waiting_.insert(rank);
    const uint64_t before = generation_;
    if (waiting_.size() == static_cast<size_t>(world_size_)) {
      waiting_.clear();
      link_ = std::make_shared<FakeLink>(world_size_, ++generation_, clock_, faults);
      changed_.notify_all();
    }
    while (generation_ == before && !stop.requested()) changed_.wait_for(lock, kLookMs);
    if (generation_ == before) {
      waiting_.erase(rank);
      return Status(StatusCode::kCancelled, "stopped");
    }
    return std::unique_ptr<Group>(std::make_unique<FakeGroup>(link_, rank));
  }
  std::shared_ptr<FakeLink> link() const {
    const std::lock_guard lock(mutex_);
    return link_;
  }

  Faults faults;

 private:
  const int world_size_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> waiting_;
  uint64_t generation_ = 0;
  std::shared_ptr<FakeLink> link_;
};

}  // namespace tensorfold::test
