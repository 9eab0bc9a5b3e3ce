// tfctl status and tfctl health: the document of GET /status, as text or as it is.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "ctl/control_client.h"
#include "ctl/status_text.h"
#include "ctl/verbs.h"
#include "daemon/control/protocol.h"

namespace tensorfold::ctl {
namespace {

constexpr auto kPollGap = std::chrono::milliseconds(200);

}  // namespace

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
  double wait_s = 0;
  if (call.has("--wait")) {
    const std::string text = call.get("--wait");
    char* end = nullptr;
    wait_s = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != '\0' || !(wait_s >= 0 && wait_s <= 86400)) {
      *call.err << "tfctl: --wait needs seconds in 0..86400, not '" << text << "'\n";
      return kExitUsage;
    }
  }
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::milliseconds(static_cast<long long>(wait_s * 1000));
  for (;;) {
    const auto document = control_get(call, control::kStatusPath);
    const std::string state = document.ok() ? status_text_at(*document, "", "state") : "";
    const bool ready = state == "ready";
    const bool denied = !document.ok() && document.status().reason() == "permission";
    if (!ready && !denied && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kPollGap);
      continue;
    }
    if (!document.ok()) return control_failure(call, document.status());
    const std::string detail = status_text_at(*document, "", "detail");
    if (call.json) {
      *call.out << "{\"schema_version\": " << control::kSchemaVersion
                << ", \"ready\": " << (ready ? "true" : "false") << ", \"state\": \"" << state
                << "\"}\n";
    } else {
      *call.out << state_with_detail(state, detail, ": ", "") << "\n";
    }
    return ready ? kExitOk : kExitNotReady;
  }
}

}  // namespace tensorfold::ctl
