// WorkerEngine: the Engine of a daemon whose role is worker. It loads its rank's slice, joins its
// head and runs the head's plans; requests are refused with a word about where to send them.
//
// Its thread owns rank and group; everything else is for any thread. kWaiting: loaded, no group
// stands. kReady: one does, so that the head can answer requests.
#pragma once

#include <memory>

#include "engine/base/clock.h"
#include "engine/base/log_sink.h"
#include "engine/engine.h"

namespace tensorfold {

Result<std::unique_ptr<Engine>> start_worker_engine(EngineOptions options, const Clock& clock,
                                                    LogSink& log);

}  // namespace tensorfold
