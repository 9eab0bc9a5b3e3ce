// Ranks as threads of one process: they meet at a barrier, read each other's input in place and
// meet again before anyone's input may change. For tests and two-rank runs on one CPU.
//
// Owner: each handle belongs to one thread; the meeting point is shared by all handles and dies
// with the last. Once a rank gave up waiting (deadline) or called with another size, every later
// call on every rank fails at once: the order of calls can't be repaired.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "engine/cluster/collective.h"

namespace tensorfold {
namespace {

class MeetingPoint {
 public:
  MeetingPoint(int world, int timeout_ms)
      : world_(world), timeout_(timeout_ms), inputs_(static_cast<size_t>(world)) {}

  int world() const { return world_; }

  Status exchange(int rank, std::span<const std::byte> in, std::span<std::byte> out) {
    {
      std::unique_lock lock(mutex_);
      TF_RETURN_IF_ERROR(broken_);
      inputs_[static_cast<size_t>(rank)] = in;
      TF_RETURN_IF_ERROR(meet(lock, rank));
      TF_RETURN_IF_ERROR(check_sizes(in.size()));
    }
    for (size_t r = 0; r < inputs_.size(); ++r) {
      if (in.empty()) break;
      std::memcpy(out.data() + r * in.size(), inputs_[r].data(), in.size());
    }
    // Every rank is past the first meeting and only copies: this wait needs no deadline, and must
    // have none, for a rank that left early would take its input away under the others' copies.
    std::unique_lock lock(mutex_);
    const uint64_t round = round_;
    if (!arrive()) all_here_.wait(lock, [&] { return round_ != round; });
    return ok_status();
  }

 private:
  // True for the last rank of a round, which opens the next one.
  bool arrive() {
    if (++arrived_ < world_) return false;
    arrived_ = 0;
    ++round_;
    all_here_.notify_all();
    return true;
  }

  // Waits until all ranks have arrived in this round, up to the deadline.
  Status meet(std::unique_lock<std::mutex>& lock, int rank) {
    const uint64_t round = round_;
    if (arrive()) return ok_status();
    const bool met =
        all_here_.wait_for(lock, timeout_, [&] { return round_ != round || !broken_.ok(); });
    if (round_ != round) return ok_status();
    if (!met && broken_.ok()) {
      broken_ = unavailable("rank " + std::to_string(rank) + " waited " +
                                std::to_string(timeout_.count()) + " ms for " +
                                std::to_string(world_ - arrived_) + " other rank(s)",
                            "peer_lost");
      all_here_.notify_all();
    }
    return broken_;
  }

  Status check_sizes(size_t bytes) {
    for (const auto& input : inputs_) {
      if (input.size() != bytes && broken_.ok()) {
        broken_ = internal_error("ranks gather different sizes: " + std::to_string(bytes) +
                                 " and " + std::to_string(input.size()) + " bytes");
      }
    }
    return broken_;
  }

  const int world_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  // Written under the mutex before the first meeting; read without it between the two meetings,
  // when no rank can be writing.
  std::vector<std::span<const std::byte>> inputs_;
  int arrived_ = 0;
  uint64_t round_ = 0;
  Status broken_;
};

class ThreadCollective final : public Collective {
 public:
  ThreadCollective(int rank, std::shared_ptr<MeetingPoint> point)
      : rank_(rank), point_(std::move(point)) {}
  int rank() const override { return rank_; }
  int world_size() const override { return point_->world(); }
  Status all_gather(std::span<const std::byte> in, std::span<std::byte> out) override {
    TF_CHECK_EQ(out.size(), in.size() * static_cast<size_t>(world_size()));
    return point_->exchange(rank_, in, out);
  }

 private:
  const int rank_;
  const std::shared_ptr<MeetingPoint> point_;
};

}  // namespace

std::vector<std::unique_ptr<Collective>> make_thread_collectives(int world_size, int timeout_ms) {
  TF_CHECK(world_size >= 1 && world_size <= kRanksMax && timeout_ms > 0);
  auto point = std::make_shared<MeetingPoint>(world_size, timeout_ms);
  std::vector<std::unique_ptr<Collective>> handles;
  handles.reserve(static_cast<size_t>(world_size));
  for (int r = 0; r < world_size; ++r)
    handles.push_back(std::make_unique<ThreadCollective>(r, point));
  return handles;
}

}  // namespace tensorfold
