// The verbs that change the running daemon: reload, drain, resume, stop, log level. And logs, which
// is journalctl with the right filter.
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ostream>
#include <thread>

#include "ctl/control_client.h"
#include "ctl/verbs.h"
#include "daemon/control/protocol.h"

namespace tensorfold::ctl {
namespace {

constexpr auto kPollGap = std::chrono::milliseconds(200);
constexpr double kWaitSecondsMax = 86400;

// Seconds of an option, or usage.
bool seconds_of(const Invocation& call, const char* option, double& out) {
  const std::string text = call.get(option);
  char* end = nullptr;
  out = std::strtod(text.c_str(), &end);
  if (end != text.c_str() && *end == '\0' && out >= 0 && out <= kWaitSecondsMax) return true;
  *call.err << "tfctl: " << option << " needs seconds in 0..86400, not '" << text << "'\n";
  return false;
}

// Polls the status until `done` says so. kExitTimeout when the time is over first.
template <typename Done>
int wait_until(const Invocation& call, double seconds, Done done) {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::milliseconds(static_cast<long long>(seconds * 1000));
  for (;;) {
    const auto document = control_get(call, control::kStatusPath);
    if (done(document)) return kExitOk;
    if (std::chrono::steady_clock::now() >= deadline) {
      *call.err << "tfctl: not there after " << seconds << " s\n";
      return kExitTimeout;
    }
    std::this_thread::sleep_for(kPollGap);
  }
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

std::string string_at(const Json& document, std::string_view name) {
  const Json* value = document.find(name);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

int64_t busy_replies(const Json& status) {
  const Json* slots = status.find("slots");
  const Json* busy = slots == nullptr ? nullptr : slots->find("busy");
  const Json* queue = status.find("queue");
  const Json* waiting = queue == nullptr ? nullptr : queue->find("waiting");
  int64_t out = 0;
  for (const Json* value : {busy, waiting})
    if (value != nullptr && value->is_int()) out += value->as_int64().value_or(0);
  return out;
}

}  // namespace

int run_reload(const Invocation& call) {
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
  double seconds = 0;
  if (!seconds_of(call, "--wait", seconds)) return kExitUsage;
  return wait_until(call, seconds, [](const Result<Json>& status) {
    return status.ok() && string_at(*status, "state") == "ready";
  });
}

int run_drain(const Invocation& call) {
  double seconds = 0;
  if (call.has("--wait") && !seconds_of(call, "--wait", seconds)) return kExitUsage;
  const int code = change(call, control::kDrainPath, "",
                          "draining: new requests are refused; 'tfctl resume' ends that");
  if (code != kExitOk || !call.has("--wait")) return code;
  return wait_until(call, seconds, [](const Result<Json>& status) {
    return status.ok() && busy_replies(*status) == 0;
  });
}

int run_resume(const Invocation& call) {
  return change(call, control::kResumePath, "", "requests are accepted again");
}

int run_stop(const Invocation& call) {
  double seconds = 0;
  if (call.has("--wait") && !seconds_of(call, "--wait", seconds)) return kExitUsage;
  const std::string path = std::string(control::kStopPath) + (call.has("--now") ? "?now=1" : "");
  const int code = change(call, path, "", "stopping");
  if (code != kExitOk || !call.has("--wait")) return code;
  return wait_until(call, seconds, [](const Result<Json>& status) {
    return !status.ok() && status.status().reason() == "not_running";
  });
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
  *call.out << (call.json ? text : string_at(*document, "level")) << "\n";
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
