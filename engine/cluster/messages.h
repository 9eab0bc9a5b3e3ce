// What the link's own frames say. Each struct has one binary form (wire.h); decoding checks every
// bound and refuses what is left over, so encode(decode(x)) == x.
// Owner: values. Deliberately no policy: who is taken and who is refused is decided by the formers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cluster/group.h"
#include "engine/cluster/transport.h"

namespace tensorfold {

inline constexpr size_t kLinkAddressBytesMax = 128;  // text of an address
inline constexpr size_t kDifferencesMax = 16;        // named in one refusal

enum class ChannelUse : uint8_t { kControl = 1, kHeartbeat = 2, kExchange = 3 };

struct JoinRequest {
  ChannelUse use = ChannelUse::kControl;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  uint64_t generation = 0;     // 0 for kControl: the head gives it
  uint64_t instance = 0;       // of the process: tells a restarted worker from a second one
  std::string listen_address;  // where other workers reach this rank; empty when it does not listen
  uint16_t listen_port = 0;
  LinkFields fingerprint;  // kControl only
};

struct LinkDifference {
  std::string name, head, worker;  // the field and both values
};

struct Refusal {
  std::string reason;
  std::vector<LinkDifference> differences;
  std::string text() const;  // one line for both sides' logs
};

struct RosterEntry {
  uint32_t rank = 0;
  std::string address;
  uint16_t port = 0;
};

struct Roster {
  uint64_t generation = 0;
  std::vector<RosterEntry> workers;   // by rank, all but the head
  std::vector<std::byte> invitation;  // of the transport
};

struct Beat {
  uint64_t number = 0;
  int64_t sent_us = 0;   // sender's monotonic clock
  int64_t unix_us = 0;   // sender's wall clock, only told
  int64_t echo_us = -1;  // sent_us of the last beat that the sender got, -1: none yet
  int64_t held_us = 0;   // how long ago that was
};

struct ExchangeHead {
  uint64_t number = 0;
  uint64_t bytes = 0;
};

std::vector<std::byte> encode(const JoinRequest& m);
std::vector<std::byte> encode(const Refusal& m);
std::vector<std::byte> encode(const Roster& m);
std::vector<std::byte> encode(const Beat& m);
std::vector<std::byte> encode(const ExchangeHead& m);
std::vector<std::byte> encode_fields(const LinkFields& fields);
std::vector<std::byte> encode_text(std::string_view text);  // cut at kLinkReasonBytesMax

std::optional<JoinRequest> decode_join(std::span<const std::byte> bytes);
std::optional<Refusal> decode_refusal(std::span<const std::byte> bytes);
std::optional<Roster> decode_roster(std::span<const std::byte> bytes);
std::optional<Beat> decode_beat(std::span<const std::byte> bytes);
std::optional<ExchangeHead> decode_exchange(std::span<const std::byte> bytes);
std::optional<LinkFields> decode_fields(std::span<const std::byte> bytes);
std::optional<std::string> decode_text(std::span<const std::byte> bytes);

// Every field that only one has or whose value differs, in the head's order, then the worker's.
std::vector<LinkDifference> compare_fields(const LinkFields& head, const LinkFields& worker);
// kInvalidArgument, naming `what`, when over kLinkFieldsMax, name, value or report bounds.
Status check_fields(const std::string& what, const LinkFields& fields);

}  // namespace tensorfold
