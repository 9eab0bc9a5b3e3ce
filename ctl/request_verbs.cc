// tfctl request list and request cancel.
#include <cstdio>
#include <ostream>

#include "ctl/control_client.h"
#include "ctl/verbs.h"
#include "daemon/control/protocol.h"

namespace tensorfold::ctl {
namespace {

std::string text_of(const Json& request, std::string_view name) {
  const Json* value = request.find(name);
  if (value == nullptr) return "";
  return value->is_string() ? value->as_string() : dump_json_compact(*value);
}

std::string row(const std::string& id, const std::string& label, const std::string& api,
                const std::string& state, const std::string& prompt, const std::string& reply,
                const std::string& age) {
  char text[512];
  std::snprintf(text, sizeof text, "%-40s %-16s %-12s %-8s %16s %8s %9s", id.c_str(), label.c_str(),
                api.c_str(), state.c_str(), prompt.c_str(), reply.c_str(), age.c_str());
  return text;
}

}  // namespace

int run_request_list(const Invocation& call) {
  std::string text;
  const auto document = control_get(call, control::kRequestsPath, &text);
  if (!document.ok()) return control_failure(call, document.status());
  if (call.json) {
    *call.out << text << "\n";
    return kExitOk;
  }
  const Json* requests = document->find("requests");
  if (requests == nullptr || !requests->is_array())
    return fail(call, data_loss("tensorfoldd's reply has no list of requests"));
  *call.out << row("ID", "LABEL", "API", "STATE", "PROMPT", "REPLY", "SECONDS") << "\n";
  for (const Json& one : requests->as_array()) {
    *call.out << row(text_of(one, "id"), text_of(one, "label"), text_of(one, "api"),
                     text_of(one, "state"),
                     text_of(one, "prompt_done") + "/" + text_of(one, "prompt_tokens"),
                     text_of(one, "reply_tokens"), text_of(one, "age_s"))
              << "\n";
  }
  return kExitOk;
}

// Every id is tried; the exit status is that of the first failure.
int run_request_cancel(const Invocation& call) {
  int code = kExitOk;
  for (const std::string& id : call.positional) {
    std::string text;
    const auto document =
        control_post(call, control::kCancelPath,
                     dump_json_compact(Json::object({{"id", Json::string(id)}})), &text);
    if (!document.ok()) {
      const int failed = control_failure(call, document.status());
      if (code == kExitOk) code = failed;
      continue;
    }
    *call.out << (call.json ? text : "cancelled " + id) << "\n";
  }
  return code;
}

}  // namespace tensorfold::ctl
