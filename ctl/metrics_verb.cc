// tfctl metrics: what GET /metrics says, over the control socket, so that it needs no API key; all
// of it, or the families that are asked for, as it is or as JSON.
#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <string>

#include "ctl/control_client.h"
#include "ctl/verbs.h"
#include "daemon/control/protocol.h"

namespace tensorfold::ctl {
namespace {

constexpr int kMetricsSchemaVersion = 1;

// "# TYPE name type", "# HELP name text" or "name{labels} value": the name in it.
std::string_view name_in(std::string_view line) {
  if (line.rfind("# ", 0) == 0) {
    line.remove_prefix(std::min(line.size(), line.find(' ', 2)));
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  }
  return line.substr(0, line.find_first_of(" {"));
}

// A family is asked for by its name or by the beginning of it.
bool wanted(const Invocation& call, std::string_view name) {
  return call.positional.empty() ||
         std::any_of(call.positional.begin(), call.positional.end(),
                     [&](const std::string& start) { return name.rfind(start, 0) == 0; });
}

Json sample_json(std::string_view line) {
  const size_t space = line.rfind(' ');
  const std::string value(line.substr(std::min(space, line.size() - 1) + 1));
  const size_t open = line.find('{'), close = line.rfind('}');
  const bool labels = open != line.npos && close != line.npos && open < close && close < space;
  return Json::object(
      {{"name", Json::string(std::string(name_in(line)))},
       {"labels", Json::string(labels ? std::string(line.substr(open + 1, close - open - 1)) : "")},
       {"value", Json::real(std::strtod(value.c_str(), nullptr))}});
}

}  // namespace

int run_metrics(const Invocation& call) {
  const auto reply =
      control_request(call.socket_path, "GET", control::kMetricsPath, "", call.timeout_ms);
  if (!reply.ok()) return control_failure(call, reply.status());
  if (reply->status != 200) {
    return fail(call, unavailable("tensorfoldd answered " + std::to_string(reply->status)));
  }
  Json::Array samples;
  size_t shown = 0;
  std::string_view text = reply->body;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.empty() || !wanted(call, name_in(line))) continue;
    ++shown;
    if (!call.json) {
      *call.out << line << "\n";
    } else if (line.front() != '#') {
      samples.push_back(sample_json(line));
    }
  }
  if (call.json) {
    *call.out << dump_json_compact(
                     Json::object({{"schema_version", Json::integer(kMetricsSchemaVersion)},
                                   {"samples", Json::array(std::move(samples))}}))
              << "\n";
  }
  if (shown > 0 || call.positional.empty()) return kExitOk;
  *call.err << "tfctl: no metric has such a name\n";
  return kExitFailed;
}

}  // namespace tensorfold::ctl
