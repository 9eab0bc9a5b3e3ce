// The verbs that change the running daemon: reload, drain, resume, stop, log level. And logs, which
// is journalctl with the right filter.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <ostream>

#include "ctl/control_client.h"
#include "ctl/control_wait.h"
#include "ctl/status_text.h"
#include "ctl/verbs.h"
#include "daemon/control/protocol.h"

namespace tensorfold::ctl {
namespace {

// Looks at the status until `over`. What comes back then decides, a failure to reach the daemon
// too, unless it is what was waited for.
int wait_until(const Invocation& call, double seconds,
               const std::function<bool(const Json& status)>& over, bool until_gone = false) {
  Status failure;
  const bool there =
      look_until(call, control::kStatusPath, seconds, [&](const Result<Json>& document) {
        if (document.ok()) return over(*document);
        failure = document.status();
        return true;
      });
  if (!there) {
    *call.err << "tfctl: not there after " << seconds << " s\n";
    return kExitTimeout;
  }
  if (failure.ok() || (until_gone && failure.reason() == "not_running")) return kExitOk;
  return control_failure(call, failure);
}

int change(const Invocation& call, std::string_view path, std::string_view body,
           const std::string& done) {
  std::string text;
  const auto document = control_post(call, path, body, &text);
  if (!document.ok()) return control_failure(call, document.status());
  if (call.json) {
    *call.out << text << "\n";
  } else {
    *call.out << done << "\n";
  }
  return kExitOk;
}

double replies_left(const Json& status) {
  return status_number_at(status, "slots", "busy") + status_number_at(status, "queue", "waiting");
}

}  // namespace

int run_reload(const Invocation& call) {
  double seconds = 0;
  if (!wait_seconds(call, seconds)) return kExitUsage;
  std::string text;
  const auto document = control_post(call, control::kReloadPath, "", &text);
  if (!document.ok()) return control_failure(call, document.status());
  if (call.json) {
    *call.out << text << "\n";
  } else {
    *call.out << "settings reloaded\n";
    if (const Json* keys = document->find("need_restart"); keys != nullptr && keys->is_array()) {
      for (const Json& key : keys->as_array())
        if (key.is_string()) *call.out << key.as_string() << " waits for a restart\n";
    }
  }
  if (!call.has("--wait")) return kExitOk;
  return wait_until(call, seconds, [](const Json& status) {
    return status_text_at(status, "", "state") == "ready";
  });
}

int run_drain(const Invocation& call) {
  double seconds = 0;
  if (!wait_seconds(call, seconds)) return kExitUsage;
  const int code = change(call, control::kDrainPath, "",
                          "draining: new requests are refused; 'tfctl resume' ends that");
  if (code != kExitOk || !call.has("--wait")) return code;
  return wait_until(call, seconds, [](const Json& status) { return replies_left(status) == 0; });
}

int run_resume(const Invocation& call) {
  return change(call, control::kResumePath, "", "requests are accepted again");
}

int run_stop(const Invocation& call) {
  double seconds = 0;
  if (!wait_seconds(call, seconds)) return kExitUsage;
  const std::string path = std::string(control::kStopPath) + (call.has("--now") ? "?now=1" : "");
  const int code = change(call, path, "", "stopping");
  if (code != kExitOk || !call.has("--wait")) return code;
  return wait_until(
      call, seconds, [](const Json&) { return false; }, true);
}

int run_log_level(const Invocation& call) {
  if (!call.positional.empty()) {
    return change(call, control::kLogLevelPath,
                  dump_json_compact(Json::object({{"level", Json::string(call.positional[0])}})),
                  "log level " + call.positional[0] + " until a reload or restart");
  }
  std::string text;
  const auto document = control_get(call, control::kLogLevelPath, &text);
  if (!document.ok()) return control_failure(call, document.status());
  *call.out << (call.json ? text : status_text_at(*document, "", "level")) << "\n";
  return kExitOk;
}

// Replaces this process by journalctl.
int run_logs(const Invocation& call) {
  const std::string unit = call.has("--unit") ? call.get("--unit") : unit_of(call.socket_path);
  std::vector<std::string> words = {"journalctl", "--unit=" + unit};
  if (call.has("-f")) words.emplace_back("--follow");
  if (call.has("--since")) words.push_back("--since=" + call.get("--since"));
  if (call.has("--lines")) words.push_back("--lines=" + call.get("--lines"));
  if (call.has("--explain")) words.emplace_back("--catalog");
  if (call.json) words.emplace_back("--output=json");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  call.out->flush();
  execvp(arguments[0], arguments.data());
  const int error = errno;
  *call.err << "tfctl: journalctl: " << std::strerror(error) << "\n";
  return kExitFailed;
}

}  // namespace tensorfold::ctl
