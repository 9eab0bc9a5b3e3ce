// A bounded ring between one producer at a time and one consumer, without locks.
//
// The engine pushes (its worker or its thread; the calls for one request are ordered), the loop
// pops. Memory order: the producer writes a slot, then releases `tail_`; the consumer acquires
// `tail_`, moves the slot out, then releases `head_`; the producer acquires `head_` before it
// reuses the slot. Runs under TSan (tests/daemon/event_ring_test.cc).
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold::api {

template <typename T>
class EventRing {
 public:
  explicit EventRing(size_t capacity_items)
      : mask_(capacity_items - 1), slots_(new T[capacity_items]) {
    TF_CHECK_MSG(capacity_items > 1 && (capacity_items & mask_) == 0, "a power of two");
  }

  // Producer: whether try_push would take an item.
  bool has_room(size_t spare_items = 0) const {
    const size_t used =
        tail_.load(std::memory_order_relaxed) - head_.load(std::memory_order_acquire);
    return used + spare_items < mask_ + 1;
  }

  // Producer. Takes the item only if at least `spare_items` + 1 slots are free.
  bool try_push(T&& item, size_t spare_items = 0) {
    if (!has_room(spare_items)) return false;
    const size_t tail = tail_.load(std::memory_order_relaxed);
    slots_[tail & mask_] = std::move(item);
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  // Consumer.
  std::optional<T> try_pop() {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return std::nullopt;
    std::optional<T> item(std::move(slots_[head & mask_]));
    head_.store(head + 1, std::memory_order_release);
    return item;
  }

  size_t capacity() const { return mask_ + 1; }

 private:
  const size_t mask_;
  std::unique_ptr<T[]> slots_;
  alignas(64) std::atomic<size_t> head_{0};  // next to pop
  alignas(64) std::atomic<size_t> tail_{0};  // next to push
};

}  // namespace tensorfold::api
