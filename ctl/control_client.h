// One request to the daemon over its control socket: blocking, bounded in time and size.
//
// Failures are told apart by the status's reason, because the exit code says which it was:
// "not_running", "permission", "timeout"; anything else is a refusal or a damaged reply.
#pragma once

#include <string>
#include <string_view>

#include "ctl/verb.h"
#include "engine/base/json.h"
#include "engine/base/status.h"

namespace tensorfold::ctl {

struct ControlReply {
  int status = 0;  // HTTP
  std::string body;
};

Result<ControlReply> control_request(const std::string& socket_path, std::string_view method,
                                     std::string_view path, std::string_view body, int timeout_ms);

// GET of a JSON document; an HTTP status other than 200 is an error with the daemon's message.
Result<Json> control_get(const Invocation& call, std::string_view path,
                         std::string* text = nullptr);
// POST of a JSON body ("" is none), with a JSON document as the answer.
Result<Json> control_post(const Invocation& call, std::string_view path, std::string_view body,
                          std::string* text = nullptr);

// Writes "tfctl: message" and gives the exit code of the failure.
int control_failure(const Invocation& call, const Status& status);

}  // namespace tensorfold::ctl
