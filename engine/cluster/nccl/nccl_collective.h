// Collective and transport over NCCL, for ranks on GPUs. Communicators are non-blocking: making one
// and every exchange are polled with a deadline, the group's end and NCCL's own asynchronous error
// in view. A thread of the collective watches both and aborts the communicator, so that a kernel
// that waits for a dead peer ends although the engine thread is inside a wait of the driver.
//
// Partial results are exchanged on device memory, on the step's own queue (DeviceExchange), also
// within recorded steps. What is on the host (plans, agreement, Engram rows) goes through the
// device's lane (kernels/exchange_lane.h), behind the step's queue: NCCL wants the exchanges of a
// communicator in one order on all ranks. Owner: the engine thread; the watcher reads errors and
// the time of the step under way, and aborts.
//
// A communicator that is aborted waits for the recorded steps that hold it to go: they must not
// need the watcher for that.
#pragma once

#include <functional>
#include <memory>

#include "engine/cluster/nccl/nccl_library.h"
#include "engine/cluster/transport.h"
#include "kernels/exchange_lane.h"

namespace tensorfold {

inline constexpr int64_t kNcclWatchMs = 100;  // between two looks for errors
inline constexpr int64_t kNcclSpinUs = 300;   // of a wait, before it sleeps between looks
inline constexpr int64_t kNcclNapUs = 50;
inline constexpr size_t kNcclExchangeBytesMax = size_t{1} << 30;  // of one rank in one exchange
inline constexpr size_t kNcclFirstBytes = size_t{1} << 20;  // room for one rank's from the start

// Device::make_exchange_lane of the rank's device.
using MakeExchangeLane = std::function<Result<std::unique_ptr<ExchangeLane>>()>;

// The settings of nccl_environment.h must have been applied. What `make_lane` stands on outlives
// the transport and its collectives.
std::unique_ptr<Transport> make_nccl_transport(std::shared_ptr<const NcclLibrary> nccl,
                                               MakeExchangeLane make_lane);

}  // namespace tensorfold
