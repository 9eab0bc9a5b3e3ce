// One preflight check: a pure function from a machine and a few settings to a finding. The table is
// what `tfctl doctor`, its JSON and the tests derive from.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/preflight/machine.h"
#include "engine/base/json.h"

namespace tensorfold::preflight {

enum class Verdict : unsigned char { kOk, kWarn, kFail, kNotApplicable };
std::string_view verdict_name(Verdict verdict);  // "ok", "warn", "fail", "not applicable"

struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string read;                   // what was read, one line
  std::string action;                 // what to do, one sentence; empty if nothing
  std::vector<std::string> commands;  // shell commands that do it, if commands can
};

Finding ok(std::string read);
Finding not_applicable(std::string why);
// What a check would look at cannot be read or makes no sense: a warning where it matters (the
// published model is to run here, the link is wanted), else not applicable.
Finding unread(bool matters, std::string what);
Finding warn(std::string read, std::string action, std::vector<std::string> commands = {});
Finding fail(std::string read, std::string action, std::vector<std::string> commands = {});

// What the checks need of the service's settings.
struct Settings {
  std::string config_error;  // why the settings file cannot be used, or empty
  std::string config_file;   // empty: there is none
  std::string listen = "127.0.0.1:8888";
  std::string device = "auto";
  std::string model_path;     // empty: the embedded model
  std::string engram_path;    // empty: in the model folder
  std::string prepared_path;  // empty: none
  std::string role = "single";
  std::string link_address;
  int64_t link_port = 29620;
  std::string peer;  // host of --peer, or empty
  std::string version;
};

// What the other machine's own doctor said, asked once over ssh.
struct PeerAnswer {
  bool asked = false;
  bool ssh = false;     // a login without a password works
  std::string problem;  // why there is no document, or empty
  int64_t sent_ms = 0, received_ms = 0;
  Json document;
};
PeerAnswer ask_peer(const Machine& machine, const std::string& host);
// The words that run `argv` on the other machine.
std::vector<std::string> peer_command(const std::string& host,
                                      const std::vector<std::string>& argv);

struct Context {
  const Machine& machine;
  const Settings& settings;
  bool spark = false;      // a GB10, where the GPU shares the machine's memory
  bool published = false;  // the published model is to run here, not only the embedded one
  PeerAnswer peer;
};
Context make_context(const Machine& machine, const Settings& settings);

struct Check {
  std::string_view group;
  std::string_view name;
  std::string_view why;  // why it matters, one sentence
  Finding (*run)(const Context&);
};
std::span<const Check> check_table();

struct Outcome {
  const Check* check;
  Finding finding;
};
std::vector<Outcome> run_checks(const Context& context);

// A process as /proc shows it.
struct Process {
  int64_t pid = 0;
  std::string name;     // comm
  std::string command;  // arguments joined by spaces
  int64_t resident_bytes = 0;
};
std::vector<Process> processes(const Machine& machine);
std::string driver_version(const Machine& machine);  // "580.95.05", or empty
bool is_tensorfoldd(const Process& process);
// The process that listens on a TCP port at an address that `address` conflicts with. pid 0 and
// an empty name: somebody, who cannot be seen.
std::optional<Process> port_owner(const Machine& machine, const std::string& address, int64_t port);

// "Name=value" lines of the service's unit and drop-ins with that key, in order; and whether a unit
// was found.
struct UnitValues {
  bool found = false;
  std::vector<std::string> values;
};
UnitValues unit_values(const Machine& machine, std::string_view key);

}  // namespace tensorfold::preflight
