// tensorfoldd's command line: one table of options, from which parsing and --help derive.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "daemon/config/config.h"
#include "engine/base/status.h"

namespace tensorfold {

struct CommandLine {
  enum class Action : unsigned char { kRun, kCheckConfig, kVersion, kHelp };
  Action action = Action::kRun;
  std::string config_file;  // empty: kConfigFile if it exists, else the defaults
  std::string model, listen, control, state_dir;  // empty: as configured
};

struct CommandOption {
  std::string_view name;
  std::string_view value;  // "FILE", "[FILE]", or empty for a switch
  std::string_view help;
};
std::span<const CommandOption> command_options();

Result<CommandLine> parse_command_line(std::span<const std::string> args);
std::string command_help();

// The settings that the file and the command line make together, checked.
Result<config::Loaded> settings_of(const CommandLine& line);

}  // namespace tensorfold
