#include "daemon/command_line.h"

#include <unistd.h>

#include "daemon/api/effort.h"

namespace tensorfold {
namespace {

constexpr CommandOption kOptions[] = {
    {"--config", "FILE", "settings (default: /etc/tensorfoldd/tensorfoldd.toml, if it is there)"},
    {"--check-config", "[FILE]",
     "say whether the settings are right and what memory they take, and end"},
    {"--model", "DIR", "model folder, instead of model.path"},
    {"--listen", "ADDR", "address and port of the API, instead of http.listen"},
    {"--control", "PATH", "control socket, instead of control.path"},
    {"--state-dir", "DIR",
     "folder for what outlives a restart (default: $STATE_DIRECTORY; else none)"},
    {"--version", "", "print the version"},
    {"--help", "", "print this"},
};

const CommandOption* find_option(std::string_view name) {
  for (const CommandOption& option : kOptions)
    if (option.name == name) return &option;
  return nullptr;
}

std::string* target_of(CommandLine& line, std::string_view name) {
  if (name == "--config" || name == "--check-config") return &line.config_file;
  if (name == "--model") return &line.model;
  if (name == "--listen") return &line.listen;
  if (name == "--control") return &line.control;
  return &line.state_dir;
}

void set_action(CommandLine& line, std::string_view name) {
  if (name == "--check-config") line.action = CommandLine::Action::kCheckConfig;
  if (name == "--version") line.action = CommandLine::Action::kVersion;
  if (name == "--help") line.action = CommandLine::Action::kHelp;
}

}  // namespace

std::span<const CommandOption> command_options() { return kOptions; }

std::string command_help() {
  std::string out =
      "usage: tensorfoldd [OPTIONS]\n\nRuns a language model as an OpenAI-compatible service.\n\n";
  for (const CommandOption& option : kOptions) {
    std::string head = "  " + std::string(option.name);
    if (!option.value.empty()) head += " " + std::string(option.value);
    head.resize(std::max<size_t>(head.size(), 26), ' ');
    out += head + " " + std::string(option.help) + "\n";
  }
  return out;
}

Result<CommandLine> parse_command_line(std::span<const std::string> args) {
  CommandLine line;
  for (size_t i = 0; i < args.size(); ++i) {
    std::string name = args[i];
    std::optional<std::string> value;
    if (const size_t eq = name.find('='); eq != std::string::npos) {
      value = name.substr(eq + 1);
      name.resize(eq);
    }
    const CommandOption* option = find_option(name);
    if (option == nullptr) return invalid_argument("unknown argument '" + args[i] + "'");
    set_action(line, name);
    if (option->value.empty()) {
      if (value) return invalid_argument(name + " takes no value");
      continue;
    }
    const bool optional = option->value.front() == '[';
    const bool has_next = i + 1 < args.size() && args[i + 1].rfind("--", 0) != 0;
    if (!value && has_next) value = args[++i];
    if (!value && optional) continue;
    if (!value || value->empty()) {
      return invalid_argument(name + " needs " + std::string(option->value));
    }
    *target_of(line, name) = *value;
  }
  return line;
}

Result<config::Loaded> settings_of(const CommandLine& line) {
  config::Loaded loaded{config::default_config(), {}};
  const std::string file(config::kConfigFile);
  if (!line.config_file.empty()) {
    TF_ASSIGN_OR_RETURN(loaded, config::load_config(line.config_file));
  } else if (access(file.c_str(), F_OK) == 0) {
    TF_ASSIGN_OR_RETURN(loaded, config::load_config(file));
  }
  config::Config& config = loaded.config;
  if (!line.model.empty()) config.model_path = line.model;
  if (!line.listen.empty()) config.http_listen = line.listen;
  if (!line.control.empty()) config.control_path = line.control;
  TF_RETURN_IF_ERROR(config::check_config(config));
  TF_ASSIGN_OR_RETURN(auto efforts, api::EffortTable::parse(config.text_effort_table));
  (void)efforts;
  return loaded;
}

}  // namespace tensorfold
