// Both sides of the proof. Owner: see the header. Deliberately compares proofs in constant time and
// derives nothing before they are right.
#include "engine/cluster/handshake.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "engine/cluster/wire.h"

namespace tensorfold {
namespace {

constexpr std::string_view kConnectorMark = "TFLINKC1";
constexpr std::string_view kAcceptorMark = "TFLINKA1";
constexpr size_t kMarkBytes = 8;
constexpr size_t kProtocolAt = kMarkBytes, kReservedAt = 12, kNonceAt = 16;

Preamble make_preamble(std::string_view mark, uint32_t protocol,
                       std::span<const std::byte, kLinkNonceBytes> nonce) {
  Preamble out{};
  std::memcpy(out.data(), mark.data(), kMarkBytes);
  for (size_t i = 0; i < 4; ++i)
    out[kProtocolAt + i] = static_cast<std::byte>((protocol >> (8 * i)) & 255U);
  std::memcpy(out.data() + kNonceAt, nonce.data(), nonce.size());
  return out;
}

Preamble fresh_preamble(std::string_view mark, uint32_t protocol) {
  std::array<std::byte, kLinkNonceBytes> nonce{};
  random_bytes(nonce);
  return make_preamble(mark, protocol, nonce);
}

bool read_preamble(std::string_view mark, std::span<const std::byte> in, uint32_t& protocol) {
  if (std::memcmp(in.data(), mark.data(), kMarkBytes) != 0) return false;
  protocol = 0;
  for (size_t i = 0; i < 4; ++i)
    protocol |= std::to_integer<uint32_t>(in[kProtocolAt + i]) << (8 * i);
  for (size_t i = kReservedAt; i < kNonceAt; ++i) {
    if (in[i] != std::byte{0}) return false;
  }
  return true;
}

SessionKeys session_keys(std::span<const std::byte> key, std::span<const std::byte> transcript,
                         bool connector) {
  const LinkDigest session = link_hmac(key, "tensorfold link session", transcript);
  const LinkDigest forward = link_hmac(session, "connector to acceptor", {});
  const LinkDigest backward = link_hmac(session, "acceptor to connector", {});
  return connector ? SessionKeys{forward, backward} : SessionKeys{backward, forward};
}

bool proof_holds(std::span<const std::byte> wanted, std::span<const std::byte> given) {
#ifdef TF_PLANTED_FAULT  // tests: whatever is said is believed
  return wanted.size() == given.size();
#else
  return equal_in_constant_time(wanted, given);
#endif
}

Status send_all(int fd, std::span<const std::byte> bytes, const LinkWait& wait) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (sent < 0 && errno == EAGAIN) {
      TF_RETURN_IF_ERROR(wait_ready(fd, POLLOUT, wait));
    } else if (sent < 0 && errno != EINTR) {
      return io_error("send", errno);
    }
  }
  return ok_status();
}

// kUnavailable at the end of the stream.
Status receive_all(int fd, std::span<std::byte> bytes, const LinkWait& wait) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return unavailable("closed");
    } else if (errno == EAGAIN) {
      TF_RETURN_IF_ERROR(wait_ready(fd, POLLIN, wait));
    }
  }
  return ok_status();
}

}  // namespace

AcceptHandshake::AcceptHandshake(std::span<const std::byte> key, uint32_t protocol)
    : key_(key), mine_(fresh_preamble(kAcceptorMark, protocol)) {}

AcceptHandshake::AcceptHandshake(std::span<const std::byte> key, uint32_t protocol,
                                 std::span<const std::byte, kLinkNonceBytes> nonce)
    : key_(key), mine_(make_preamble(kAcceptorMark, protocol, nonce)) {}

size_t AcceptHandshake::wants() const {
  if (step_ != Step::kMore) return 0;
  return transcript_.empty() ? kPreambleBytes : kLinkProofBytes;
}

AcceptHandshake::Step AcceptHandshake::consume(std::span<const std::byte> message) {
  TF_CHECK_EQ(message.size(), wants());
  if (transcript_.empty()) {
    if (!read_preamble(kConnectorMark, message, peer_protocol_)) return step_ = Step::kRefused;
    append_bytes(transcript_, message);
    append_bytes(transcript_, mine_);
    append_bytes(output_, mine_);
    return step_;
  }
  const LinkDigest wanted = link_hmac(key_, "tensorfold link connector", transcript_);
  if (!proof_holds(wanted, message)) return step_ = Step::kRefused;
  keys_ = session_keys(key_, transcript_, false);
  append_bytes(transcript_, message);
  append_bytes(output_, link_hmac(key_, "tensorfold link acceptor", transcript_));
  return step_ = Step::kProven;
}

std::vector<std::byte> AcceptHandshake::take_output() { return std::exchange(output_, {}); }

Result<std::unique_ptr<Channel>> prove_to(Fd fd, const std::string& peer,
                                          std::span<const std::byte> key, uint32_t protocol,
                                          const LinkWait& wait) {
  const Preamble mine = fresh_preamble(kConnectorMark, protocol);
  const std::string where = "handshake with " + peer;
  Status io = send_all(fd.get(), mine, wait);
  if (!io.ok()) return io.with_context(where);
  Preamble theirs{};
  io = receive_all(fd.get(), theirs, wait);
  if (!io.ok()) return io.with_context(where + ", waiting for its greeting");
  uint32_t peer_protocol = 0;
  if (!read_preamble(kAcceptorMark, theirs, peer_protocol))
    return unavailable(peer + " does not speak the link's protocol");
  std::vector<std::byte> transcript;
  append_bytes(transcript, mine);
  append_bytes(transcript, theirs);
  const LinkDigest proof = link_hmac(key, "tensorfold link connector", transcript);
  const SessionKeys keys = session_keys(key, transcript, true);
  append_bytes(transcript, proof);
  io = send_all(fd.get(), proof, wait);
  LinkDigest answer{};
  if (io.ok()) io = receive_all(fd.get(), answer, wait);
  if (io.code() == StatusCode::kUnavailable)
    return unavailable(peer + " did not take the proof of the shared key: the keys differ");
  if (!io.ok()) return io.with_context(where + ", waiting for its proof");
  if (!proof_holds(link_hmac(key, "tensorfold link acceptor", transcript), answer))
    return unavailable(peer + " could not prove the shared key: the keys differ");
  return std::make_unique<Channel>(std::move(fd), keys, peer, peer_protocol);
}

}  // namespace tensorfold
