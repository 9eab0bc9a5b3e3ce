// A bounded first-in first-out queue between two owners (many producers, one consumer or more).
//
// Producers never block: try_push says no when the queue is full or closed. Consumers may wait
// with a time bound. After close() the remaining items can still be taken, then pops say nothing.
// Not for the step path: it holds a mutex.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity_items) : capacity_(capacity_items) {
    TF_CHECK(capacity_items > 0);
  }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Moves from `item` only when it returns true.
  bool try_push(T&& item) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  std::optional<T> try_pop() {
    std::lock_guard lock(mutex_);
    return take();
  }

  // Waits up to `timeout_us` microseconds for an item; also returns when the queue is closed.
  std::optional<T> pop_wait(int64_t timeout_us) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, std::chrono::microseconds(timeout_us),
                    [this] { return closed_ || !items_.empty(); });
    return take();
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }
  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  size_t capacity() const { return capacity_; }

 private:
  std::optional<T> take() {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace tensorfold
