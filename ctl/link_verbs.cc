// tfctl link: the path between two machines, measured without RDMA and without the service.
#include <array>
#include <cstdio>
#include <ostream>

#include "ctl/remote/ssh.h"
#include "ctl/verbs.h"
#include "daemon/preflight/check.h"
#include "daemon/preflight/link_probe.h"
#include "engine/base/json.h"

namespace tensorfold::ctl {
namespace {

constexpr int kLinkSchemaVersion = 1;

std::string rate_line(const std::string& from, const std::string& to, double bytes_per_second) {
  std::array<char, 64> rate{};
  std::snprintf(rate.data(), rate.size(), "%.2f GB/s", bytes_per_second / 1e9);
  return from + " to " + to + "  " + rate.data() + "\n";
}

}  // namespace

int run_link_probe(const Invocation& call) {
  const std::string &host = call.positional[0], &here = call.positional[1],
                    &there = call.positional[2];
  if (const Status status = remote::check_host(host); !status.ok()) {
    *call.err << "tfctl: " << status.message() << "\n";
    return kExitUsage;
  }
  const preflight::LinkProbe probe =
      preflight::probe_link(here, there, preflight::peer_command(host, {"tfctl"}));
  if (call.json) {
    *call.out << dump_json_compact(
                     Json::object({{"schema_version", Json::integer(kLinkSchemaVersion)},
                                   {"ok", Json::boolean(probe.problem.empty())},
                                   {"problem", Json::string(probe.problem)},
                                   {"bytes", Json::integer(preflight::kProbeBytes)},
                                   {"reached_here", Json::boolean(probe.reached_here)},
                                   {"reached_there", Json::boolean(probe.reached_there)},
                                   {"out_bytes_per_second", Json::real(probe.out_bytes_per_second)},
                                   {"in_bytes_per_second", Json::real(probe.in_bytes_per_second)}}))
              << "\n";
    return probe.problem.empty() ? kExitOk : kExitFailed;
  }
  if (!probe.problem.empty()) return fail(call, unavailable(probe.problem));
  *call.out << rate_line(here, there, probe.out_bytes_per_second)
            << rate_line(there, here, probe.in_bytes_per_second);
  return kExitOk;
}

// Said on standard output: over ssh that is what the asking side keeps.
int run_link_answer(const Invocation& call) {
  const auto request = preflight::parse_answer_words(call.positional);
  const Status status = request.ok() ? preflight::answer_probe(*request) : request.status();
  if (status.ok()) return kExitOk;
  *call.out << status.message() << "\n";
  return request.ok() ? kExitFailed : kExitUsage;
}

}  // namespace tensorfold::ctl
