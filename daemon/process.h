// The process: settings to sockets, engine and loop, and the way down again.
//
// run_daemon() owns the loop thread from start to exit code. The engine is made by a factory, so
// that tests run the same process over a scripted engine.
#pragma once

#include <functional>
#include <memory>

#include "daemon/command_line.h"
#include "engine/engine.h"
#include "engine/planned_memory.h"

namespace tensorfold {

using EngineFactory = std::function<Result<std::unique_ptr<Engine>>(
    EngineOptions options, const Clock& clock, LogSink& log)>;

// What a start would take of memory (engine/planned_memory.h); `shared`: of the machine's own.
using MemoryPlanner =
    std::function<Result<PlannedMemory>(const EngineOptions& options, bool shared)>;

// argv -> exit code (daemon/service/exit_code.h). No exception leaves it.
int daemon_main(int argc, char** argv, const EngineFactory& make_engine,
                const MemoryPlanner& planner = nullptr);

}  // namespace tensorfold
