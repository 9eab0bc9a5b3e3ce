// Command line -> verb. Owns parsing of options; knows nothing of what verbs do.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <ostream>

#include "ctl/help.h"
#include "ctl/remote/ssh.h"
#include "ctl/verb.h"
#include "daemon/control/protocol.h"
#include "engine/base/program.h"

namespace tensorfold::ctl {
namespace {

const Verb* find_verb(std::span<const std::string> args, size_t& used) {
  for (const Verb& verb : verb_table()) {
    if (verb.noun.empty() && args[0] == verb.name) {
      used = 1;
      return &verb;
    }
    if (!verb.noun.empty() && args.size() > 1 && args[0] == verb.noun && args[1] == verb.name) {
      used = 2;
      return &verb;
    }
  }
  return nullptr;
}

const Option* find_option(const Verb& verb, std::string_view name) {
  for (const Option& option : verb.options)
    if (option.name == name) return &option;
  return nullptr;
}

// "--x" always is one; "-x" where the verb has it.
bool is_option(const Verb& verb, const std::string& word) {
  return word.rfind("--", 0) == 0 ||
         (word.size() == 2 && word[0] == '-' && find_option(verb, word) != nullptr);
}

// Counts words of "DIR [FILE]": least and most positional arguments; "..." is no bound.
void positional_bounds(std::string_view text, size_t& least, size_t& most) {
  least = most = 0;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = text.find(' ', at);
    if (end == std::string_view::npos) end = text.size();
    const std::string_view word = text.substr(at, end - at);
    if (!word.empty()) {
      ++most;
      if (word.front() != '[') ++least;
      if (word.find("...") != std::string_view::npos) most = 1'000'000;
    }
    at = end + 1;
  }
}

int usage_error(std::ostream& err, const std::string& message) {
  err << "tfctl: " << message << "\n       'tfctl --help' lists the verbs\n";
  return kExitUsage;
}

bool is_help(std::string_view word) { return word == "--help" || word == "-h"; }

std::vector<std::string> verb_words(const Verb& verb) {
  std::vector<std::string> words;
  if (!verb.noun.empty()) words.emplace_back(verb.noun);
  words.emplace_back(verb.name);
  return words;
}

// `words` begin with no verb.
int unknown_verb(std::span<const std::string> words, std::ostream& err) {
  std::string names;
  for (const std::string& name : verbs_of(words[0])) names += (names.empty() ? "" : ", ") + name;
  if (names.empty()) return usage_error(err, "unknown verb '" + words[0] + "'");
  return usage_error(
      err, words.size() > 1 ? "unknown verb '" + words[0] + " " + words[1] + "'; there is: " + names
                            : "'" + words[0] + "' needs one of: " + names);
}

// One "--name", "--name=value" or "--name value" at args[i]; advances i past a separate value.
int take_option(const Verb& verb, std::span<const std::string> args, size_t& i, Invocation& call) {
  std::string name = args[i], value;
  const size_t eq = name.find('=');
  const bool joined = eq != std::string::npos;
  if (joined) {
    value = name.substr(eq + 1);
    name.resize(eq);
  }
  if (name == "--json") {
    call.json = true;
    return kExitOk;
  }
  const Option* option = find_option(verb, name);
  if (option == nullptr) {
    return usage_error(*call.err,
                       "unknown option " + name + " for '" + std::string(verb.name) + "'");
  }
  if (option->value.empty()) {
    if (joined) return usage_error(*call.err, name + " takes no value");
    value = "1";
  } else if (!joined) {
    if (i + 1 >= args.size()) {
      return usage_error(*call.err, name + " needs " + std::string(option->value));
    }
    value = args[++i];
  }
  call.options[name] = value;
  return kExitOk;
}

// The control socket of tensorfoldd@NAME.service, or nothing if no unit can have that name.
std::optional<std::string> instance_socket(const std::string& name) {
  constexpr size_t kInstanceNameBytesMax = 64;
  const auto good = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
  };
  if (name.empty() || name.size() > kInstanceNameBytesMax) return std::nullopt;
  if (!std::all_of(name.begin(), name.end(), good)) return std::nullopt;
  return std::string(control::kRuntimeDirectory) + "-" + name + "/" +
         std::string(control::kSocketName);
}

// Global options before the verb. Returns kExitOk or the code to end with.
int take_globals(std::span<const std::string> args, size_t& i, Invocation& call) {
  for (; i < args.size() && args[i].rfind("--", 0) == 0; ++i) {
    if (args[i] == "--json") {
      call.json = true;
    } else if (args[i] == "--instance" && i + 1 < args.size()) {
      const auto socket = instance_socket(args[++i]);
      if (!socket) {
        return usage_error(*call.err,
                           "--instance needs a unit's instance name, not '" + args[i] + "'");
      }
      call.socket_path = *socket;
    } else if ((args[i] == "--socket" || args[i] == "--timeout") && i + 1 < args.size()) {
      const std::string& value = args[i + 1];
      if (args[i] == "--socket") {
        call.socket_path = value;
      } else {
        char* end = nullptr;
        const double seconds = std::strtod(value.c_str(), &end);
        if (end == value.c_str() || *end != '\0' || !(seconds > 0 && seconds <= 86400)) {
          return usage_error(*call.err,
                             "--timeout needs seconds in (0, 86400], not '" + value + "'");
        }
        call.timeout_ms = static_cast<int>(seconds * 1000);
      }
      ++i;
    } else if (args[i] == "--host") {
      return usage_error(*call.err, "--host HOST comes before every other option");
    } else {
      return usage_error(*call.err, "unknown option " + args[i]);
    }
  }
  return kExitOk;
}

// tfctl --host HOST ...: the same arguments for the tfctl of that machine. Its output is not read
// here, and its exit status is this one's.
int run_on_host(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
  if (args.size() < 2) return usage_error(err, "--host needs a host");
  const std::string& host = args[1];
  if (const Status status = remote::check_host(host); !status.ok()) {
    return usage_error(err, status.message());
  }
  if (args.size() < 3) return usage_error(err, "no verb given");
  std::vector<std::string> argv = {"tfctl"};
  argv.insert(argv.end(), args.begin() + 2, args.end());
  out << std::flush;
  const bool terminal = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  const auto ended = run_program(remote::ssh_command(host, argv, terminal));
  if (!ended.ok()) {
    err << "tfctl: ssh cannot be started: " << ended.status().message() << "\n";
    return kExitFailed;
  }
  if (ended->exit_status == remote::kSshFailed) {
    err << "tfctl: ssh to " << host << " failed: a login without a password must work ('ssh "
        << host << " true')\n";
    return kExitNotRunning;
  }
  if (ended->exit_status == remote::kNotFound) {
    err << "tfctl: " << host << " has no tfctl: install the package there\n";
    return kExitFailed;
  }
  return ended->exit_status;
}

}  // namespace

std::string unit_of(const std::string& socket_path) {
  const std::string folder = std::string(control::kRuntimeDirectory) + "-";
  const size_t slash = socket_path.rfind('/');
  if (socket_path.rfind(folder, 0) != 0 || slash == std::string::npos || slash < folder.size())
    return "tensorfoldd.service";
  return "tensorfoldd@" + socket_path.substr(folder.size(), slash - folder.size()) + ".service";
}

int fail(const Invocation& call, const Status& status) {
  *call.err << "tfctl: " << status.message() << "\n";
  return kExitFailed;
}

int run_tfctl(std::span<const std::string> args, std::istream& in, std::ostream& out,
              std::ostream& err) {
  Invocation call;
  call.socket_path = control::default_socket_path();
  call.in = &in;
  call.out = &out;
  call.err = &err;
  if (!args.empty() && (is_help(args[0]) || args[0] == "help")) {
    return print_help(args.subspan(1), out) ? kExitOk : unknown_verb(args.subspan(1), err);
  }
  if (!args.empty() && args[0] == "--host") return run_on_host(args, out, err);
  size_t i = 0;
  if (const int code = take_globals(args, i, call); code != kExitOk) return code;
  if (i == args.size()) return usage_error(err, "no verb given");
  size_t used = 0;
  const Verb* verb = find_verb(args.subspan(i), used);
  if (verb == nullptr) {
    const auto words = args.subspan(i);
    if (is_help(words.back()) && print_help(words.first(words.size() - 1), out)) return kExitOk;
    return unknown_verb(words, err);
  }
  bool only_positional = false;
  for (i += used; i < args.size(); ++i) {
    if (!only_positional && args[i] == "--") {
      only_positional = true;
    } else if (!only_positional && is_help(args[i]) && find_option(*verb, args[i]) == nullptr) {
      print_help(verb_words(*verb), out);
      return kExitOk;
    } else if (!only_positional && is_option(*verb, args[i])) {
      if (const int code = take_option(*verb, args, i, call); code != kExitOk) return code;
    } else {
      call.positional.push_back(args[i]);
    }
  }
  size_t least = 0, most = 0;
  positional_bounds(verb->positional, least, most);
  if (call.positional.size() < least || call.positional.size() > most) {
    return usage_error(
        err, "'" + std::string(verb->name) + "' takes " +
                 (verb->positional.empty() ? "no arguments" : std::string(verb->positional)));
  }
  return verb->run(call);
}

}  // namespace tensorfold::ctl
