// io_uring batches (see batch_reader.h). A window of at most kReadsInFlightMax reads is submitted
// and waited for; the kernel writes into the ring's own memory, so a read that ends after it was
// given up writes nowhere else.
#include "engine/weights/batch_reader.h"

#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "engine/base/clock.h"

namespace tensorfold {

struct BatchReader::Ring {
  io_uring uring = {};
  std::vector<std::byte> memory;  // of the reads in flight, one behind the other
  size_t in_flight = 0;

  static std::unique_ptr<Ring> make() {
    auto ring = std::make_unique<Ring>();
    if (io_uring_queue_init(kReadsInFlightMax, &ring->uring, 0) != 0) return nullptr;
    ring->made = true;
    return ring;
  }
  ~Ring() {
    if (made) io_uring_queue_exit(&uring);
    // The kernel may still write there: such memory is never handed back.
    if (in_flight > 0) (void)new std::vector<std::byte>(std::move(memory));  // NOLINT: kept
  }
  // One that has ended: its number and what the kernel said; waits until `until_us`. False: none
  // has.
  bool take(int64_t until_us, size_t& index, int& outcome) {
    io_uring_cqe* completion = nullptr;
    for (;;) {
      const int64_t left = std::max<int64_t>(0, until_us - system_clock().monotonic_us());
      __kernel_timespec wait = {left / 1'000'000, left % 1'000'000 * 1000};
      const int rc = io_uring_wait_cqe_timeout(&uring, &completion, &wait);
      if (rc == 0) break;
      if (rc != -EINTR && (rc != -ETIME || left == 0)) return false;
    }
    index = static_cast<size_t>(io_uring_cqe_get_data64(completion));
    outcome = completion->res;
    io_uring_cqe_seen(&uring, completion);
    --in_flight;
    return true;
  }
  bool made = false;
};

BatchReader::BatchReader(bool use_ring, int64_t deadline_ms) : deadline_ms_(deadline_ms) {
  if (use_ring) ring_ = Ring::make();
}

BatchReader::~BatchReader() = default;

Status BatchReader::read(std::span<const ReadRequest> requests) {
  forget_late();
  while (!requests.empty()) {
    const size_t count = std::min<size_t>(requests.size(), kReadsInFlightMax);
    const std::span<const ReadRequest> window = requests.first(count);
    if (late_.size() >= kLateRingsMax) {
      return unavailable(window[0].file->path() + ": the disk still does not answer", "slow_disk");
    }
    if (ring_ != nullptr) {
      TF_RETURN_IF_ERROR(read_window(window));
    } else {
      for (const ReadRequest& r : window) TF_RETURN_IF_ERROR(r.file->read(r.offset, r.out));
    }
    requests = requests.subspan(count);
  }
  return ok_status();
}

// Rings whose reads have all ended by now go.
void BatchReader::forget_late() {
  for (const std::unique_ptr<Ring>& ring : late_) {
    size_t index = 0;
    int outcome = 0;
    while (ring->in_flight > 0 && ring->take(0, index, outcome)) {
    }
  }
  std::erase_if(late_, [](const std::unique_ptr<Ring>& ring) { return ring->in_flight == 0; });
}

Status BatchReader::give_up(const ReadRequest& request) {
  late_.push_back(std::move(ring_));
  ring_ = Ring::make();
  return unavailable(request.file->path() + ": a read at byte " + std::to_string(request.offset) +
                         " did not end in " + std::to_string(deadline_ms_) +
                         " ms: the disk does not answer",
                     "slow_disk");
}

Status BatchReader::read_window(std::span<const ReadRequest> requests) {
  std::array<bool, kReadsInFlightMax> ended = {}, done = {};
  std::array<size_t, kReadsInFlightMax> place = {};
  size_t bytes = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    place[i] = bytes;
    bytes += requests[i].out.size();
  }
  if (ring_->memory.size() < bytes) ring_->memory.resize(bytes);
  size_t queued = 0;
  for (; queued < requests.size(); ++queued) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_->uring);
    if (entry == nullptr) break;
    const ReadRequest& r = requests[queued];
    io_uring_prep_read(entry, r.file->fd(), &ring_->memory[place[queued]],
                       static_cast<unsigned>(r.out.size()), static_cast<uint64_t>(r.offset));
    io_uring_sqe_set_data64(entry, queued);
  }
  size_t submitted = 0;
  while (submitted < queued) {
    const int n = io_uring_submit(&ring_->uring);
    if (n == -EINTR || n == -EAGAIN) continue;
    if (n <= 0) break;
    submitted += static_cast<size_t>(n);
  }
  ring_->in_flight = submitted;
  const int64_t until_us = system_clock().monotonic_us() + deadline_ms_ * 1000;
  while (ring_->in_flight > 0) {
    size_t index = 0;
    int outcome = 0;
    if (!ring_->take(until_us, index, outcome)) {
      const bool* late = std::find(ended.data(), ended.data() + submitted, false);
      return give_up(requests[static_cast<size_t>(late - ended.data())]);
    }
    const std::span<std::byte> out = requests[index].out;
    ended[index] = true;
    done[index] = outcome == static_cast<int>(out.size());
    if (done[index]) std::memcpy(out.data(), &ring_->memory[place[index]], out.size());
  }
  // The kernel stopped taking entries: start over without a ring.
  if (submitted < queued) ring_.reset();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!done[i]) TF_RETURN_IF_ERROR(requests[i].file->read(requests[i].offset, requests[i].out));
  }
  return ok_status();
}

}  // namespace tensorfold
