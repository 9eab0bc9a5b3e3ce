// A lane (kernels/exchange_lane.h) whose device memory is host memory, for the stand-in of NCCL: an
// operation is done when its queue says so.
#pragma once

#include <cstring>
#include <thread>
#include <vector>

#include "kernels/exchange_lane.h"
#include "tests/engine/cluster/fake_nccl.h"

namespace tensorfold::fake_nccl {

class FakeLane final : public ExchangeLane {
 public:
  Status begin_thread() override { return ok_status(); }
  Status reserve(size_t in_bytes, size_t out_bytes) override {
    for (auto* memory : {&host_in_, &device_in_})
      if (memory->size() < in_bytes) memory->resize(in_bytes);
    for (auto* memory : {&host_out_, &device_out_})
      if (memory->size() < out_bytes) memory->resize(out_bytes);
    return ok_status();
  }
  std::byte* host_in() override { return host_in_.data(); }
  const std::byte* host_out() const override { return host_out_.data(); }
  void* device_in() override { return device_in_.data(); }
  void* device_out() override { return device_out_.data(); }
  void* queue() override { return &queue_; }
  // The other's work is a thread's: wait for it here.
  Status follow(void* other) override {
    while (static_cast<Queue*>(other)->waiting.load(std::memory_order_acquire) > 0)
      std::this_thread::yield();
    return ok_status();
  }
  Status upload(size_t bytes) override {
    std::memcpy(device_in_.data(), host_in_.data(), bytes);
    return ok_status();
  }
  Status download(size_t bytes) override {
    bytes_ = bytes;
    return ok_status();
  }
  Status mark() override { return ok_status(); }
  Result<bool> passed() override {
    if (queue_.waiting.load(std::memory_order_acquire) > 0) return false;
    std::memcpy(host_out_.data(), device_out_.data(), bytes_);
    return true;
  }

 private:
  std::vector<std::byte> host_in_, host_out_, device_in_, device_out_;
  Queue queue_;
  size_t bytes_ = 0;
};

}  // namespace tensorfold::fake_nccl
