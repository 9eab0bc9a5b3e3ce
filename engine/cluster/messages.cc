// Binary forms of the link's frames. Owner: none; pure functions.
// Deliberately rejects anything that encode() would not have written.
#include "engine/cluster/messages.h"

#include <algorithm>

#include "engine/cluster/wire.h"

namespace tensorfold {
namespace {

void put_fields(WireWriter& out, const LinkFields& fields) {
  out.u32(static_cast<uint32_t>(fields.size()));
  for (const auto& [name, value] : fields) {
    out.text(name);
    out.text(value);
  }
}

bool get_fields(WireReader& in, LinkFields& fields) {
  uint32_t count = 0;
  if (!in.u32(count) || count > kLinkFieldsMax) return false;
  size_t total = 0;
  for (uint32_t i = 0; i < count; ++i) {
    std::string name, value;
    if (!in.text(kLinkNameBytesMax, name) || !in.text(kLinkValueBytesMax, value)) return false;
    total += name.size() + value.size();
    fields.emplace_back(std::move(name), std::move(value));
  }
  return total <= kLinkReportBytesMax;
}

const std::string* find(const LinkFields& fields, const std::string& name) {
  for (const auto& field : fields) {
    if (field.first == name) return &field.second;
  }
  return nullptr;
}

std::string cut(std::string_view text, size_t bytes_max) {
  return std::string(text.substr(0, bytes_max));
}

}  // namespace

std::string Refusal::text() const {
  std::string line = reason;
  for (const LinkDifference& d : differences)
    line += "; " + d.name + ": head has '" + d.head + "', worker has '" + d.worker + "'";
  return line;
}

std::vector<std::byte> encode(const JoinRequest& m) {
  WireWriter out;
  out.u8(static_cast<uint8_t>(m.use));
  out.u32(m.rank);
  out.u32(m.world_size);
  out.u64(m.generation);
  out.u64(m.instance);
  out.text(m.listen_address);
  out.u16(m.listen_port);
  put_fields(out, m.fingerprint);
  return out.out();
}

std::optional<JoinRequest> decode_join(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  JoinRequest m;
  uint8_t use = 0;
  const bool good = in.u8(use) && in.u32(m.rank) && in.u32(m.world_size) && in.u64(m.generation) &&
                    in.u64(m.instance) && in.text(kLinkAddressBytesMax, m.listen_address) &&
                    in.u16(m.listen_port) && get_fields(in, m.fingerprint) && in.done();
  if (!good || use < 1 || use > 3) return std::nullopt;
  m.use = static_cast<ChannelUse>(use);
  return m;
}

std::vector<std::byte> encode(const Refusal& m) {
  WireWriter out;
  out.text(cut(m.reason, kLinkReasonBytesMax));
  const size_t count = std::min(m.differences.size(), kDifferencesMax);
  out.u32(static_cast<uint32_t>(count));
  for (size_t i = 0; i < count; ++i) {
    out.text(m.differences[i].name);
    out.text(m.differences[i].head);
    out.text(m.differences[i].worker);
  }
  return out.out();
}

std::optional<Refusal> decode_refusal(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  Refusal m;
  uint32_t count = 0;
  if (!in.text(kLinkReasonBytesMax, m.reason) || !in.u32(count) || count > kDifferencesMax)
    return std::nullopt;
  for (uint32_t i = 0; i < count; ++i) {
    LinkDifference d;
    if (!in.text(kLinkNameBytesMax, d.name) || !in.text(kLinkValueBytesMax, d.head) ||
        !in.text(kLinkValueBytesMax, d.worker)) {
      return std::nullopt;
    }
    m.differences.push_back(std::move(d));
  }
  if (!in.done()) return std::nullopt;
  return m;
}

std::vector<std::byte> encode(const Roster& m) {
  WireWriter out;
  out.u64(m.generation);
  out.u32(static_cast<uint32_t>(m.workers.size()));
  for (const RosterEntry& entry : m.workers) {
    out.u32(entry.rank);
    out.text(entry.address);
    out.u16(entry.port);
  }
  out.u32(static_cast<uint32_t>(m.invitation.size()));
  out.bytes(m.invitation);
  return out.out();
}

std::optional<Roster> decode_roster(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  Roster m;
  uint32_t count = 0, invitation = 0;
  if (!in.u64(m.generation) || !in.u32(count) || count >= static_cast<uint32_t>(kRanksMax))
    return std::nullopt;
  for (uint32_t i = 0; i < count; ++i) {
    RosterEntry entry;
    if (!in.u32(entry.rank) || entry.rank != i + 1 ||
        !in.text(kLinkAddressBytesMax, entry.address) || !in.u16(entry.port)) {
      return std::nullopt;
    }
    m.workers.push_back(std::move(entry));
  }
  std::span<const std::byte> part;
  if (!in.u32(invitation) || invitation > kInvitationBytesMax || !in.bytes(invitation, part) ||
      !in.done()) {
    return std::nullopt;
  }
  m.invitation.assign(part.begin(), part.end());
  return m;
}

std::vector<std::byte> encode(const Beat& m) {
  WireWriter out;
  out.u64(m.number);
  for (const int64_t value : {m.sent_us, m.unix_us, m.echo_us, m.held_us})
    out.u64(static_cast<uint64_t>(value));
  return out.out();
}

std::optional<Beat> decode_beat(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  Beat m;
  if (!in.u64(m.number) || !in.i64(m.sent_us) || !in.i64(m.unix_us) || !in.i64(m.echo_us) ||
      !in.i64(m.held_us) || !in.done()) {
    return std::nullopt;
  }
  return m;
}

std::vector<std::byte> encode(const ExchangeHead& m) {
  WireWriter out;
  out.u64(m.number);
  out.u64(m.bytes);
  return out.out();
}

std::optional<ExchangeHead> decode_exchange(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  ExchangeHead m;
  if (!in.u64(m.number) || !in.u64(m.bytes) || !in.done()) return std::nullopt;
  return m;
}

std::vector<std::byte> encode_fields(const LinkFields& fields) {
  WireWriter out;
  put_fields(out, fields);
  return out.out();
}

std::optional<LinkFields> decode_fields(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  LinkFields fields;
  if (!get_fields(in, fields) || !in.done()) return std::nullopt;
  return fields;
}

std::vector<std::byte> encode_text(std::string_view text) {
  WireWriter out;
  out.text(text.substr(0, kLinkReasonBytesMax));
  return out.out();
}

std::optional<std::string> decode_text(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  std::string text;
  if (!in.text(kLinkReasonBytesMax, text) || !in.done()) return std::nullopt;
  return text;
}

std::vector<LinkDifference> compare_fields(const LinkFields& head, const LinkFields& worker) {
  constexpr const char* kAbsent = "(absent)";
  std::vector<LinkDifference> found;
  for (const auto& [name, value] : head) {
    const std::string* other = find(worker, name);
    if (other == nullptr || *other != value)
      found.push_back({name, value, other == nullptr ? kAbsent : *other});
  }
  for (const auto& [name, value] : worker) {
    if (find(head, name) == nullptr) found.push_back({name, kAbsent, value});
  }
  return found;
}

Status check_fields(const std::string& what, const LinkFields& fields) {
  size_t total = 0;
  if (fields.size() > kLinkFieldsMax)
    return invalid_argument(what + ": more than " + std::to_string(kLinkFieldsMax) + " fields");
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto& [name, value] = fields[i];
    total += name.size() + value.size();
    if (name.empty() || name.size() > kLinkNameBytesMax || value.size() > kLinkValueBytesMax)
      return invalid_argument(what + ": field '" + cut(name, kLinkNameBytesMax) + "' is too long");
    if (find(fields, name) != &value)
      return invalid_argument(what + ": field '" + name + "' twice");
  }
  if (total > kLinkReportBytesMax)
    return invalid_argument(what + ": more than " + std::to_string(kLinkReportBytesMax) + " bytes");
  return ok_status();
}

}  // namespace tensorfold
