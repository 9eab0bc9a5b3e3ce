// tfctl doctor: the preflight checks as a table, or as JSON. Exit status 1 if a check fails.
//
// --root takes a recorded machine (daemon/preflight/machine.h) instead of this one.
#include <algorithm>
#include <fstream>
#include <ostream>
#include <string>

#include "ctl/verbs.h"
#include "daemon/config/config.h"
#include "daemon/preflight/check.h"
#include "daemon/preflight/facts.h"
#include "daemon/preflight/settings.h"
#include "engine/base/utf8.h"

namespace tensorfold::ctl {
namespace {

using preflight::Outcome;
using preflight::Verdict;

constexpr int kDoctorSchemaVersion = 1;
constexpr size_t kNameColumns = 17;
constexpr size_t kVerdictColumns = 15;

// The settings of the machine's own file, or of --config; a wrong file is a finding, not an error.
preflight::Settings settings_of(const Invocation& call, const preflight::Machine& machine) {
  std::string config_file, config_error;
  const bool given = call.has("--config");
  std::optional<std::string> text;
  if (given) {
    config_file = call.get("--config");
    std::ifstream in(config_file, std::ios::binary);
    if (in) text.emplace(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  } else if (machine.exists(config::kConfigFile)) {
    config_file = config::kConfigFile;
    text = machine.read(config::kConfigFile);
  }
  config::Config config = config::default_config();
  if (!config_file.empty()) {
    auto loaded = text ? config::parse_config(*text, config_file)
                       : Result<config::Loaded>(
                             invalid_argument(config_file + ": cannot be read by this user"));
    Status status = loaded.ok() ? config::check_config(loaded->config) : loaded.status();
    if (!status.ok()) config_error = status.message();
    if (loaded.ok()) config = loaded->config;
  }
  preflight::Settings out = preflight::settings_from(config, config_file);
  out.config_error = config_error;
  out.peer = call.get("--peer");
  out.model_path = call.get("--model", config.model_path);
  return out;
}

std::string padded(std::string_view text, size_t columns) {
  std::string out(text);
  out.resize(std::max(columns, out.size() + 1), ' ');
  return out;
}

size_t count_of(const std::vector<Outcome>& outcomes, Verdict verdict) {
  return static_cast<size_t>(
      std::count_if(outcomes.begin(), outcomes.end(),
                    [&](const Outcome& one) { return one.finding.verdict == verdict; }));
}

void print_table(const Invocation& call, const std::vector<Outcome>& outcomes) {
  std::ostream& out = *call.out;
  const std::string indent(kNameColumns, ' ');
  std::string_view group;
  for (const Outcome& one : outcomes) {
    if (one.check->group != group) out << (group.empty() ? "" : "\n") << one.check->group << "\n";
    group = one.check->group;
    const preflight::Finding& finding = one.finding;
    std::string verdict(preflight::verdict_name(finding.verdict));
    if (finding.verdict == Verdict::kFail) verdict = "FAIL";
    out << padded(one.check->name, kNameColumns) << padded(verdict, kVerdictColumns) << finding.read
        << "\n";
    if (finding.verdict != Verdict::kFail && finding.verdict != Verdict::kWarn) continue;
    out << indent << "why: " << one.check->why << "\n";
    out << indent << "do:  " << finding.action << "\n";
    if (!call.has("--fix-hints")) continue;
    for (const std::string& command : finding.commands)
      out << indent << "     $ " << command << "\n";
  }
  out << "\n"
      << count_of(outcomes, Verdict::kFail) << " failed, " << count_of(outcomes, Verdict::kWarn)
      << " warned, " << count_of(outcomes, Verdict::kOk) << " ok, "
      << count_of(outcomes, Verdict::kNotApplicable) << " not applicable\n";
}

Json document_of(const preflight::Context& context, const std::vector<Outcome>& outcomes,
                 bool good) {
  const auto text = [](std::string_view value) { return Json::string(std::string(value)); };
  Json::Array checks;
  for (const Outcome& one : outcomes) {
    Json check = Json::object({});
    check.set("group", text(one.check->group));
    check.set("name", text(one.check->name));
    check.set("verdict", text(preflight::verdict_name(one.finding.verdict)));
    check.set("read", text(one.finding.read));
    check.set("why", text(one.check->why));
    check.set("action", text(one.finding.action));
    Json::Array commands;
    for (const std::string& command : one.finding.commands) commands.push_back(text(command));
    check.set("commands", Json::array(std::move(commands)));
    checks.push_back(std::move(check));
  }
  Json out = Json::object({});
  out.set("schema_version", Json::integer(kDoctorSchemaVersion));
  out.set("ok", Json::boolean(good));
  out.set("machine", preflight::machine_json(context));
  out.set("checks", Json::array(std::move(checks)));
  return out;
}

}  // namespace

int run_doctor(const Invocation& call) {
  std::unique_ptr<preflight::Machine> machine = preflight::live_machine();
  if (call.has("--root")) {
    auto recorded = preflight::recorded_machine(call.get("--root"));
    if (!recorded.ok()) return fail(call, recorded.status());
    machine = std::move(recorded).value();
  }
  const std::string peer = call.get("--peer");
  if (call.has("--peer") && (peer.empty() || peer.front() == '-')) {
    *call.err << "tfctl: --peer needs a host, not '" << peer << "'\n";
    return kExitUsage;
  }
  const preflight::Settings settings = settings_of(call, *machine);
  const preflight::Context context = preflight::make_context(*machine, settings);
  const std::vector<Outcome> outcomes = preflight::run_checks(context);
  const bool good = count_of(outcomes, Verdict::kFail) == 0;
  if (call.json) {
    // What was read on the machine may be any bytes.
    *call.out << utf8_lossy(dump_json_compact(document_of(context, outcomes, good))) << "\n";
  } else {
    print_table(call, outcomes);
  }
  return good ? kExitOk : kExitFailed;
}

}  // namespace tensorfold::ctl
