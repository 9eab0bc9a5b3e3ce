// Which transport the ranks of a model exchange partial results over (engine/cluster/transport.h):
// sockets for ranks on CPUs, NCCL for ranks on GPUs, or what cluster.transport says.
#pragma once

#include <memory>
#include <string>

#include "engine/base/log_sink.h"
#include "engine/cluster/group.h"
#include "engine/cluster/transport.h"
#include "engine/engine.h"
#include "kernels/device.h"

namespace tensorfold {

// NCCL reads its settings from the environment (engine/cluster/nccl_environment.h). Main thread,
// before there are others; does nothing where ranks will not use NCCL.
void prepare_transport(const EngineOptions& options, LogSink& log);

struct TransportChoice {
  std::unique_ptr<Transport> transport;
  LinkFields fingerprint;  // of it: what must be equal on all ranks
};
// `device` outlives it. kUnavailable: NCCL is wanted and can't be opened.
Result<TransportChoice> choose_transport(const EngineOptions& options, Device& device);

}  // namespace tensorfold
