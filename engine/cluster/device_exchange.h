// DeviceExchange: exchanges between ranks on the memory of their devices, queued behind the work of
// a step and without a wait of the host in between. A Collective whose library can do that offers
// one (Collective::on_device); its other exchanges stay on host memory.
//
// All ranks queue the same exchanges in the same order. What is queued may be recorded with a step
// (kernels/step_graph.h) and run again with it; recorded steps go before the exchange does
// (SeatCollective::on_leave).
//
// Owner: the engine thread of the rank.
#pragma once

#include <cstddef>

#include "engine/base/status.h"

namespace tensorfold {

class DeviceExchange {
 public:
  virtual ~DeviceExchange() = default;

  // Around everything of a step that exchanges: between the two, work that does not end within the
  // time of an exchange breaks the group, so that a wait for the device ends. end(): not ok when
  // the group broke; what was exchanged since begin() then counts for nothing.
  virtual void begin() = 0;
  virtual Status end() = 0;

  // Queued on `queue` (Device::native_queue): out [ranks * bytes] becomes rank r's `in` at offset
  // r * bytes. Device memory, the same `bytes` on all ranks; `in` may not overlap `out`.
  virtual Status gather(const void* in, void* out, size_t bytes, void* queue) = 0;
};

}  // namespace tensorfold
