// The other machine, over ssh: its own `tfctl doctor --json` tells what to compare. What only the
// running cluster can measure is not applicable here.
#include <algorithm>

#include "daemon/preflight/checks.h"
#include "daemon/preflight/facts.h"
#include "daemon/preflight/text.h"
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

std::vector<std::string> peer_command(const std::string& host,
                                      const std::vector<std::string>& argv) {
  std::vector<std::string> out = {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5",
                                  "--",  host};
  out.insert(out.end(), argv.begin(), argv.end());
  return out;
}

PeerAnswer ask_peer(const Machine& machine, const std::string& host) {
  PeerAnswer out;
  if (host.empty()) return out;
  out.asked = true;
  out.sent_ms = machine.unix_ms();
  const auto result = machine.command(peer_command(host, {"tfctl", "doctor", "--json"}));
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
  if (!there) return unread(true, "the other machine does not tell its time");
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

Finding check_peer_nccl(const Context& context) {
  return compare(context, "nccl", nccl_version(context.machine),
                 "Install the same libnccl2 on both machines.");
}

Finding check_peer_firmware(const Context& context) {
  Finding finding = compare(context, "firmware", link_firmware(context.machine),
                            "Update the network cards of both machines to the same firmware.");
  if (finding.verdict == Verdict::kFail) finding.verdict = Verdict::kWarn;
  return finding;
}

Finding check_peer_weights(const Context& context) {
  const std::string here = weights_fingerprint(context.machine, context.settings);
  Finding finding = compare(context, "weights", here,
                            "Copy the model folder again and verify it on both machines.");
  if (finding.verdict == Verdict::kOk) finding.read = "the same, " + here.substr(0, 12);
  if (finding.verdict == Verdict::kFail) {
    finding.commands = {"tfctl model sync " + context.settings.peer};
  }
  return finding;
}

namespace {

struct Pair {
  LinkEnd here, there;
};

// Ends in one subnet are ends of one cable.
std::vector<Pair> pairs_of(const Context& context) {
  std::vector<Pair> out;
  const Json* machine = context.peer.document.find("machine");
  if (machine == nullptr) return out;
  for (const LinkEnd& here : link_ends(context.machine)) {
    for (const LinkEnd& there : link_ends_of(*machine)) {
      const auto a = ipv4(here.address), b = ipv4(there.address);
      if (a && b && same_subnet(*a, *b, here.prefix)) out.push_back({here, there});
    }
  }
  return out;
}

}  // namespace

Finding check_peer_mtu(const Context& context) {
  if (!context.peer.asked) return not_applicable("no --peer is given");
  const auto pairs = pairs_of(context);
  if (pairs.empty()) return not_applicable("no subnet of the link is on both machines");
  std::vector<std::string> seen;
  bool differ = false;
  for (const auto& [here, there] : pairs) {
    seen.push_back(concat({here.netdev, " ", std::to_string(here.mtu), ", there ", there.netdev,
                           " ", std::to_string(there.mtu)}));
    differ = differ || here.mtu != there.mtu;
  }
  if (!differ) return ok(join(seen, "; "));
  return fail(join(seen, "; "), "Set the same MTU, 9000, on both ends and in netplan.");
}

// Packets as large as the MTU that may not be cut: 20 bytes of IP and 8 of ICMP are not payload.
Finding check_peer_transfer(const Context& context) {
  constexpr int64_t kHeaderBytes = 28;
  if (!context.peer.asked) return not_applicable("no --peer is given");
  std::vector<std::string> good, lost;
  for (const auto& [here, there] : pairs_of(context)) {
    if (here.mtu <= kHeaderBytes) continue;
    const std::string size = std::to_string(here.mtu - kHeaderBytes);
    const auto result = context.machine.command(
        {"ping", "-c", "3", "-i", "0.2", "-W", "2", "-M", "do", "-s", size, there.address});
    if (!result) return unread(true, "ping is not there or did not end in time");
    (result->exit_code == 0 ? good : lost)
        .push_back(concat({there.address, " with ", std::to_string(here.mtu), " bytes"}));
  }
  if (good.empty() && lost.empty()) {
    return not_applicable("no subnet of the link is on both machines");
  }
  if (lost.empty()) return ok("packets arrive: " + join(good, ", "));
  return fail("no answer from " + join(lost, ", "),
              "Set MTU 9000 on both ends, and let a firewall pass everything on the link.",
              {"ip -br link", "sudo ufw status"});
}

namespace {

// A tenth of what the interface is rated for: one connection does not fill a fast link.
double least_rate(const Machine& machine, const std::string& netdev) {
  constexpr double kBytesPerMegabit = 1e6 / 8;
  constexpr double kShareLeast = 0.1;
  const auto megabits = to_int(machine.line("/sys/class/net/" + netdev + "/speed"));
  return megabits && *megabits > 0 ? static_cast<double>(*megabits) * kBytesPerMegabit * kShareLeast
                                   : 0;
}

std::string rate_text(double bytes_per_second) {
  return bytes_text(static_cast<int64_t>(bytes_per_second)) + "/s";
}

}  // namespace

Finding check_peer_link(const Context& context) {
  if (!context.peer.asked) return not_applicable("no --peer is given");
  std::vector<std::string> seen, slow;
  for (const auto& [here, there] : pairs_of(context)) {
    const auto probe = context.machine.probe(context.settings.peer, here.address, there.address);
    if (!probe) return not_applicable("nothing was measured");
    if (!probe->problem.empty()) {
      const std::string where = probe->reached_here ? "the other machine" : "this machine";
      return fail(concat({here.address, " and ", there.address, ": ", probe->problem}),
                  "Allow everything on the link on both machines: a connection to " + where +
                      " or its data does not get through.",
                  {"sudo ufw allow in on " + here.netdev, "ip -br link"});
    }
    seen.push_back(concat({there.address, " ", rate_text(probe->out_bytes_per_second), " out, ",
                           rate_text(probe->in_bytes_per_second), " in"}));
    const double least = least_rate(context.machine, here.netdev);
    if (std::min(probe->out_bytes_per_second, probe->in_bytes_per_second) < least) {
      slow.push_back(concat({here.netdev, " below ", rate_text(least)}));
    }
  }
  if (seen.empty()) return not_applicable("no subnet of the link is on both machines");
  if (slow.empty()) return ok(join(seen, ", "));
  return warn(join(seen, ", ") + ": " + join(slow, ", "),
              "Look for other traffic on the link, for errors of the cable and at its speed.",
              {"ip -s link", "ethtool " + slow.front().substr(0, slow.front().find(' '))});
}

}  // namespace tensorfold::preflight
