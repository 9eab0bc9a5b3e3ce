// Waiting for the daemon to get somewhere: looks at a document of the control socket again and
// again.
#pragma once

#include <functional>
#include <string_view>

#include "ctl/verb.h"
#include "engine/base/json.h"
#include "engine/base/status.h"

namespace tensorfold::ctl {

inline constexpr int kLookGapMs = 100;             // between two looks
inline constexpr double kWaitSecondsMax = 86'400;  // --wait

// The value of --wait, 0 when it is not given. False: it is no number of seconds, which is said.
bool wait_seconds(const Invocation& call, double& seconds);

// GET of `path` until `over` says so of what came back; false when `seconds` have passed first.
bool look_until(const Invocation& call, std::string_view path, double seconds,
                const std::function<bool(const Result<Json>& document)>& over);

}  // namespace tensorfold::ctl
