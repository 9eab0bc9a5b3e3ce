// tfctl config check and config show.
#include <ostream>

#include "ctl/control_client.h"
#include "ctl/verbs.h"
#include "daemon/api/effort.h"
#include "daemon/config/config.h"
#include "daemon/control/protocol.h"

namespace tensorfold::ctl {

int run_config_check(const Invocation& call) {
  const std::string file = call.positional.empty() ? config::kConfigFile : call.positional[0];
  const auto loaded = config::load_config(file);
  if (!loaded.ok()) return fail(call, loaded.status());
  if (const Status status = config::check_config(loaded->config); !status.ok())
    return fail(call, status.with_context(file));
  const auto efforts = api::EffortTable::parse(loaded->config.text_effort_table);
  if (!efforts.ok()) return fail(call, efforts.status().with_context(file));
  for (const std::string& warning : loaded->warnings) *call.err << "warning: " << warning << "\n";
  *call.out << file << ": the settings are right\n";
  return kExitOk;
}

// Lines of TOML: what differs from the defaults, or with --all every key.
int run_config_show(const Invocation& call) {
  std::string text;
  const auto document = control_get(call, control::kConfigPath, &text);
  if (!document.ok()) return control_failure(call, document.status());
  if (call.json) {
    *call.out << text << "\n";
    return kExitOk;
  }
  const Json* file = document->find("file");
  const Json* settings = document->find("settings");
  if (settings == nullptr || !settings->is_object())
    return fail(call, data_loss("tensorfoldd's reply has no settings"));
  const bool named = file != nullptr && file->is_string() && !file->as_string().empty();
  *call.out << "# settings in use, from " << (named ? file->as_string() : std::string("no file"))
            << " and the command line\n";
  for (const auto& [name, entry] : settings->as_object()) {
    const Json* value = entry.find("value");
    const Json* is_default = entry.find("default");
    if (value == nullptr || is_default == nullptr || !is_default->is_bool()) continue;
    if (is_default->as_bool() && !call.has("--all")) continue;
    *call.out << name << " = " << dump_json_python(*value) << "\n";
  }
  return kExitOk;
}

}  // namespace tensorfold::ctl
