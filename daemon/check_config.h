// 'tensorfoldd --check-config': whether settings are right, and what a start with them would take
// of memory. Starts nothing, opens no device. Prints; keeps nothing.
#pragma once

#include "daemon/command_line.h"
#include "daemon/process.h"

namespace tensorfold {

// The exit code (daemon/service/exit_code.h). A model that does not fit this machine is a fault of
// the settings; one that is not there, or does not fit what is free just now, is only told.
int check_config_main(const CommandLine& line, const MemoryPlanner& planner);

}  // namespace tensorfold
