// How the process ends, by the names that systemd prints (sysexits.h). 78 is not restarted.
#pragma once

namespace tensorfold::service {

enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 64,
  kExitUnavailable = 69,  // no usable device, or another instance runs
  kExitInternal = 70,
  kExitOs = 71,  // the operating system refused, e.g. the port is taken
  kExitIo = 74,  // model files could not be read
  kExitPermission = 77,
  kExitConfig = 78,
};

}  // namespace tensorfold::service
