// The other machine, over ssh: its own `tfctl doctor --json` tells what to compare. What only the
// running cluster can measure is not applicable here.
#include "ctl/preflight/checks.h"
#include "ctl/preflight/text.h"
#include "engine/base/json.h"

namespace tensorfold::preflight {
namespace {

constexpr int64_t kClockSkewMs = 2'000;

std::string fact(const Json& document, std::string_view name) {
  const Json* machine = document.find("machine");
  const Json* value = machine == nullptr ? nullptr : machine->find(name);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

Finding compare(const Context& context, std::string_view name, const std::string& here,
                const std::string& action) {
  const PeerAnswer& peer = context.peer;
  if (!peer.asked) return not_applicable("no --peer is given");
  if (!peer.problem.empty()) return not_applicable(peer.problem);
  const std::string there = fact(peer.document, name);
  if (there.empty() && here.empty()) return not_applicable("neither machine says");
  const std::string read =
      "here " + (here.empty() ? "none" : here) + ", there " + (there.empty() ? "none" : there);
  return here == there ? ok(read) : fail(read, action);
}

}  // namespace

PeerAnswer ask_peer(const Machine& machine, const std::string& host) {
  PeerAnswer out;
  if (host.empty()) return out;
  out.asked = true;
  out.sent_ms = machine.unix_ms();
  const auto result = machine.command({"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "--",
                                       host, "tfctl", "doctor", "--json"});
  out.received_ms = machine.unix_ms();
  if (!result) {
    out.problem = "ssh is not there or did not end in time";
    return out;
  }
  if (result->exit_code == 255) {
    out.problem = "ssh cannot log in without a password";
    return out;
  }
  out.ssh = true;
  auto document = parse_json(result->output);
  if (document.ok() && document->find("machine") != nullptr) {
    out.document = std::move(document).value();
  } else {
    out.problem = "tfctl is not there, or answers nothing that can be read (exit status " +
                  std::to_string(result->exit_code) + ")";
  }
  return out;
}

Finding check_peer_ssh(const Context& context) {
  const PeerAnswer& peer = context.peer;
  if (!peer.asked) return not_applicable("no --peer is given");
  const std::string& host = context.settings.peer;
  if (!peer.ssh) {
    return fail(host + ": " + peer.problem, "Install a key for this user on the other machine.",
                {"ssh-copy-id " + host});
  }
  if (!peer.problem.empty()) {
    return fail(host + ": " + peer.problem, "Install the same package on the other machine.");
  }
  const Json* passed = peer.document.find("ok");
  if (passed != nullptr && passed->is_bool() && !passed->as_bool()) {
    return warn(host + " answers, and its own checks fail", "Run tfctl doctor there.",
                {"ssh " + host + " tfctl doctor"});
  }
  return ok(host + " answers, and its own checks pass");
}

Finding check_peer_version(const Context& context) {
  return compare(context, "version", context.settings.version,
                 "Install the same version on both machines.");
}

Finding check_peer_kernel(const Context& context) {
  Finding finding = compare(context, "kernel", context.machine.line("/proc/sys/kernel/osrelease"),
                            "Boot the same kernel on both machines.");
  if (finding.verdict == Verdict::kFail) finding.verdict = Verdict::kWarn;
  return finding;
}

Finding check_peer_driver(const Context& context) {
  return compare(context, "driver", driver_version(context.machine),
                 "Install the same driver on both machines.");
}

Finding check_peer_clock(const Context& context) {
  const PeerAnswer& peer = context.peer;
  if (!peer.asked) return not_applicable("no --peer is given");
  if (!peer.problem.empty()) return not_applicable(peer.problem);
  const Json* machine = peer.document.find("machine");
  const Json* value = machine->find("unix_ms");
  const auto there = value != nullptr && value->is_int() ? value->as_int64() : std::nullopt;
  if (!there) return not_applicable("the other machine does not tell its time");
  // It looked at its clock between our two looks.
  int64_t skew = 0;
  if (*there < peer.sent_ms) skew = *there - peer.sent_ms;
  if (*there > peer.received_ms) skew = *there - peer.received_ms;
  const std::string read = skew == 0 ? "the same within the time of the question"
                                     : std::to_string(skew) + " ms apart at least";
  if (skew > -kClockSkewMs && skew < kClockSkewMs) return ok(read);
  return warn(read, "Synchronize both clocks; only logs suffer, the cluster uses no wall clock.",
              {"sudo timedatectl set-ntp true"});
}

Finding check_peer_weights(const Context& context) {
  if (context.settings.peer.empty()) return not_applicable("no --peer is given");
  return not_applicable("the ranks compare fingerprints when they join, not here");
}

Finding check_peer_transfer(const Context& context) {
  if (context.settings.peer.empty()) return not_applicable("no --peer is given");
  return not_applicable("a transfer over the link needs the cluster to run");
}

}  // namespace tensorfold::preflight
