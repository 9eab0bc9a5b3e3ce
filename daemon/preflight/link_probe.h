// The path between two machines, measured over TCP: a connection made from each side to a port that
// the system picked on the other, and 64 MB through each. Small messages arrive where large ones
// are lost, and a firewall that lets one side in may keep the other out.
//
// The near side is asked for a measurement; it has the far side started there over ssh ("tfctl link
// answer"), which connects back. RDMA passes firewalls by, so this says nothing about it.
//
// Owner: the caller's thread, and one more for the program that reaches the far side. Everything
// has a deadline. A token keeps strangers out of the two ports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold::preflight {

inline constexpr int64_t kProbeBytes = 64'000'000;   // each way
inline constexpr int64_t kProbeConnectMs = 5'000;    // for one connection
inline constexpr int64_t kProbeTransferMs = 20'000;  // for one way's bytes
inline constexpr int64_t kProbeAnswerMs = 20'000;    // until the far side has come, login included
inline constexpr size_t kProbeTokenBytes = 32;       // hexadecimal digits

struct LinkProbe {
  std::string problem;              // empty: both connections stood, and all bytes arrived
  bool reached_here = false;        // the far side's connection came in
  bool reached_there = false;       // ours was let in
  double out_bytes_per_second = 0;  // to the far side
  double in_bytes_per_second = 0;
};

struct ProbeRequest {
  std::string here, there;  // IPv4 addresses of the two ends
  int64_t port = 0;         // that the near side listens on
  std::string token;
};

// What starts the far side, less the words "link answer ...": {"ssh", ..., "tfctl"}.
LinkProbe probe_link(const std::string& here, const std::string& there,
                     const std::vector<std::string>& far_tfctl);
// The far side, until both ways are measured.
Status answer_probe(const ProbeRequest& request);
// Words of "tfctl link answer".
std::vector<std::string> answer_words(const ProbeRequest& request);
Result<ProbeRequest> parse_answer_words(const std::vector<std::string>& words);

}  // namespace tensorfold::preflight
