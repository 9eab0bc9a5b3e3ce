// SeatCollective: the Collective that a model keeps for its life, with the group of the moment
// behind it. While there is none every exchange is refused. Owner: the thread that drives the
// model.
#pragma once

#include <functional>
#include <utility>

#include "engine/cluster/collective.h"

namespace tensorfold {

class SeatCollective final : public Collective {
 public:
  SeatCollective(int rank, int world_size) : rank_(rank), world_size_(world_size) {}
  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  // nullptr: apart. What is seated outlives its time here.
  void seat(Collective* collective) {
    if (seated_ != nullptr && leave_) leave_();
    seated_ = collective;
  }
  // Called before what is seated leaves: whatever holds on to it lets go.
  void on_leave(std::function<void()> leave) { leave_ = std::move(leave); }

  Status all_gather(std::span<const std::byte> in, std::span<std::byte> out) override {
    if (seated_ == nullptr) return unavailable("the ranks are not together", "peer_lost");
    return seated_->all_gather(in, out);
  }
  Status broadcast(std::span<std::byte> data, int root) override {
    if (seated_ == nullptr) return unavailable("the ranks are not together", "peer_lost");
    return seated_->broadcast(data, root);
  }
  DeviceExchange* on_device() override {
    return seated_ == nullptr ? nullptr : seated_->on_device();
  }

 private:
  const int rank_, world_size_;
  Collective* seated_ = nullptr;
  std::function<void()> leave_;
};

}  // namespace tensorfold
