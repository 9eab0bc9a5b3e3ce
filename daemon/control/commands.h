// Commands: what the control socket may tell the process to do. The daemon carries them out; every
// call is made on the loop thread.
#pragma once

#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "engine/base/log_sink.h"
#include "engine/base/status.h"

namespace tensorfold::control {

class Commands {
 public:
  virtual ~Commands() = default;

  // Reads the settings again: all of what a reload may change, or nothing. Gives the keys whose new
  // values need a restart; the error names file, line and key.
  virtual Result<std::vector<std::string>> reload() = 0;
  // Refuses new requests and lets the others finish; the process stays. kUnavailable while it
  // stops.
  virtual Status drain() = 0;
  virtual Status resume() = 0;
  // Ends the process: after the replies in progress (limits.drain_s at most), or at once.
  virtual void stop(bool now) = 0;

  virtual LogLevel log_level() const = 0;
  virtual void set_log_level(LogLevel level) = 0;
  virtual const config::Config& config() const = 0;
  virtual const std::string& config_file() const = 0;  // empty: none
};

}  // namespace tensorfold::control
