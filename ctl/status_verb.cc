// tfctl status and tfctl health: the document of GET /status, as text or as it is.
#include <ostream>
#include <string>

#include "ctl/control_client.h"
#include "ctl/control_wait.h"
#include "ctl/status_text.h"
#include "ctl/verbs.h"
#include "daemon/control/protocol.h"

namespace tensorfold::ctl {

int run_status(const Invocation& call) {
  std::string text;
  const auto document = control_get(call, control::kStatusPath, &text);
  if (!document.ok()) return control_failure(call, document.status());
  if (call.json) {
    *call.out << text << "\n";
    return kExitOk;
  }
  for (const auto& [name, value] : status_lines(*document))
    *call.out << status_line(name, value) << "\n";
  return kExitOk;
}

int run_health(const Invocation& call) {
  double seconds = 0;
  if (!wait_seconds(call, seconds)) return kExitUsage;
  Result<Json> last = unavailable("not asked yet");
  bool ready = false;
  look_until(call, control::kStatusPath, seconds, [&](const Result<Json>& document) {
    last = document;
    ready = document.ok() && status_text_at(*document, "", "state") == "ready";
    return ready || (!document.ok() && document.status().reason() == "permission");
  });
  if (!last.ok()) return control_failure(call, last.status());
  const std::string state = status_text_at(*last, "", "state");
  const std::string detail = status_text_at(*last, "", "detail");
  if (call.json) {
    *call.out << "{\"schema_version\": " << control::kSchemaVersion
              << ", \"ready\": " << (ready ? "true" : "false") << ", \"state\": \"" << state
              << "\"}\n";
  } else {
    *call.out << state_with_detail(state, detail, ": ", "") << "\n";
  }
  return ready ? kExitOk : kExitNotReady;
}

}  // namespace tensorfold::ctl
