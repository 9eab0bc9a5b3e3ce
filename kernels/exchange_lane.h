// ExchangeLane: a device's side of an exchange between ranks whose library (NCCL) works on device
// memory: a queue of its own, and for one exchange at a time pinned and device memory for what this
// rank gives and for what all ranks gave.
//
// An exchange: host_in is filled; upload; the library's call on queue(); download; mark; passed()
// until it says so; host_out is read. Nothing here waits: a wait of the driver could not be ended
// when a peer is gone. Owned by the collective that uses it, by one thread at a time.
#pragma once

#include <cstddef>

#include "engine/base/status.h"

namespace tensorfold {

class ExchangeLane {
 public:
  virtual ~ExchangeLane() = default;
  // What the calling thread does next with the device's runtime is done on this device.
  virtual Status begin_thread() = 0;
  // Room for so many bytes, at least; what was there is lost.
  virtual Status reserve(size_t in_bytes, size_t out_bytes) = 0;
  virtual std::byte* host_in() = 0;
  virtual const std::byte* host_out() const = 0;
  virtual void* device_in() = 0;
  virtual void* device_out() = 0;
  virtual void* queue() = 0;  // cudaStream_t

  // What is queued here from now on waits for what is queued on `other` (a queue of the same
  // library) so far.
  virtual Status follow(void* other) = 0;
  // Queued. upload: host_in to device_in. download: device_out to host_out.
  virtual Status upload(size_t bytes) = 0;
  virtual Status download(size_t bytes) = 0;
  virtual Status mark() = 0;          // behind all that is queued
  virtual Result<bool> passed() = 0;  // whether everything up to the mark is done
};

}  // namespace tensorfold
