// One verb of tfctl: what dispatch, --help, the man page, completion and a test derive from.
#pragma once

#include <iosfwd>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold::ctl {

// Exit codes of tfctl (docs/man: tfctl(1)).
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,  // the daemon refused, or an offline check said no
  kExitUsage = 2,
  kExitNotRunning = 3,  // the control socket does not answer
  kExitPermission = 4,
  kExitTimeout = 5,
  kExitNotReady = 6,
};

struct Option {
  std::string_view name;   // "--tokens"
  std::string_view value;  // "FILE", or empty for a switch
  std::string_view help;
};

// The parsed command line of one verb. Unknown options never reach here.
struct Invocation {
  std::vector<std::string> positional;
  std::map<std::string, std::string, std::less<>> options;  // switches have the value "1"
  std::string socket_path;
  int timeout_ms = 10'000;
  bool json = false;
  std::istream* in = nullptr;
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;

  bool has(std::string_view option) const { return options.find(option) != options.end(); }
  std::string get(std::string_view option, std::string_view otherwise = "") const {
    auto it = options.find(option);
    return it == options.end() ? std::string(otherwise) : it->second;
  }
};

struct Verb {
  std::string_view noun;        // "model", or empty
  std::string_view name;        // "inspect"
  std::string_view positional;  // "DIR [FILE]"; brackets mark what may be left out
  std::string_view summary;     // one line
  std::span<const Option> options;
  bool offline;  // needs no daemon
  int (*run)(const Invocation&);
};

// Every verb, in the order of --help. ctl/verb_table.cc.
std::span<const Verb> verb_table();

// Parses argv and runs the verb. Never throws; usage errors name the argument.
int run_tfctl(std::span<const std::string> args, std::istream& in, std::ostream& out,
              std::ostream& err);

// The systemd unit whose control socket that is: tensorfoldd.service, or tensorfoldd@NAME.service.
std::string unit_of(const std::string& socket_path);

// Writes "tfctl: message" and gives kExitFailed.
int fail(const Invocation& call, const Status& status);

}  // namespace tensorfold::ctl
