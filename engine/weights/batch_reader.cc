// io_uring batches (see batch_reader.h). A window of at most kReadsInFlightMax reads is submitted
// and waited for whole, so no buffer is ever written after read() returned.
#include "engine/weights/batch_reader.h"

#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace tensorfold {

struct BatchReader::Ring {
  io_uring uring = {};
};

BatchReader::BatchReader(bool use_ring) {
  if (!use_ring) return;
  auto ring = std::make_unique<Ring>();
  if (io_uring_queue_init(kReadsInFlightMax, &ring->uring, 0) == 0) ring_ = std::move(ring);
}

BatchReader::~BatchReader() {
  if (ring_ != nullptr) io_uring_queue_exit(&ring_->uring);
}

Status BatchReader::read(std::span<const ReadRequest> requests) {
  while (!requests.empty()) {
    const size_t count = std::min<size_t>(requests.size(), kReadsInFlightMax);
    const std::span<const ReadRequest> window = requests.first(count);
    if (ring_ != nullptr) {
      TF_RETURN_IF_ERROR(read_window(window));
    } else {
      for (const ReadRequest& r : window) TF_RETURN_IF_ERROR(r.file->read(r.offset, r.out));
    }
    requests = requests.subspan(count);
  }
  return ok_status();
}

Status BatchReader::read_window(std::span<const ReadRequest> requests) {
  std::array<bool, kReadsInFlightMax> done = {};
  size_t queued = 0;
  for (; queued < requests.size(); ++queued) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_->uring);
    if (entry == nullptr) break;
    const ReadRequest& r = requests[queued];
    io_uring_prep_read(entry, r.file->fd(), r.out.data(), static_cast<unsigned>(r.out.size()),
                       static_cast<uint64_t>(r.offset));
    io_uring_sqe_set_data64(entry, queued);
  }
  size_t submitted = 0;
  while (submitted < queued) {
    const int n = io_uring_submit(&ring_->uring);
    if (n == -EINTR || n == -EAGAIN) continue;
    if (n <= 0) break;
    submitted += static_cast<size_t>(n);
  }
  for (size_t i = 0; i < submitted; ++i) {
    io_uring_cqe* completion = nullptr;
    int rc = 0;
    do rc = io_uring_wait_cqe(&ring_->uring, &completion);
    while (rc == -EINTR);
    TF_CHECK_MSG(rc == 0, "io_uring lost a completion while a buffer is in flight");
    const size_t index = static_cast<size_t>(io_uring_cqe_get_data64(completion));
    const auto want = static_cast<int64_t>(requests[index].out.size());
    done[index] = completion->res == want;
    io_uring_cqe_seen(&ring_->uring, completion);
  }
  if (submitted < queued) {  // the kernel stopped taking entries: start over without a ring
    io_uring_queue_exit(&ring_->uring);
    ring_.reset();
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!done[i]) TF_RETURN_IF_ERROR(requests[i].file->read(requests[i].offset, requests[i].out));
  }
  return ok_status();
}

}  // namespace tensorfold
