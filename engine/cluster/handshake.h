// The handshake: both sides of a connection prove that they have the shared key, which itself never
// travels. Four messages of fixed size, the same in every version of the protocol:
//
//   1  connector: "TFLINKC1" | u32 protocol | u32 0 | nonce        48 bytes
//   2  acceptor:  "TFLINKA1" | u32 protocol | u32 0 | nonce        48 bytes
//   3  connector: HMAC(key, "connector" | 1 | 2)                   32 bytes
//   4  acceptor:  HMAC(key, "acceptor" | 1 | 2 | 3)                32 bytes
//
// Both nonces are fresh, so no recorded message is good again; the labels differ by role, so no
// proof can be handed back to its maker. Until 3 is right the acceptor reads 80 bytes at most,
// keeps nothing else and says nothing but 2; a wrong proof gets no answer. Versions are compared
// after the proof. Session keys: link_crypto.h. Owner: the gate's thread (accepting), the forming
// thread (connecting).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/cluster/channel.h"

namespace tensorfold {

inline constexpr size_t kPreambleBytes = 16 + kLinkNonceBytes;
// All that an acceptor reads of a peer that has not proven the key.
inline constexpr size_t kUnprovenBytesMax = kPreambleBytes + kLinkProofBytes;

using Preamble = std::array<std::byte, kPreambleBytes>;

// The accepting side as a function of bytes; sends nothing itself.
class AcceptHandshake {
 public:
  enum class Step : uint8_t { kMore, kProven, kRefused };

  AcceptHandshake(std::span<const std::byte> key, uint32_t protocol);
  // Tests: a nonce that is not fresh.
  AcceptHandshake(std::span<const std::byte> key, uint32_t protocol,
                  std::span<const std::byte, kLinkNonceBytes> nonce);

  size_t wants() const;  // bytes of the next message; 0 when proven or refused
  Step consume(std::span<const std::byte> message);  // of wants() bytes
  std::vector<std::byte> take_output();              // to be sent now
  uint32_t peer_protocol() const { return peer_protocol_; }
  const SessionKeys& keys() const { return keys_; }  // kProven

 private:
  std::span<const std::byte> key_;
  Preamble mine_{};
  std::vector<std::byte> transcript_;  // messages 1, 2
  std::vector<std::byte> output_;
  SessionKeys keys_;
  uint32_t peer_protocol_ = 0;
  Step step_ = Step::kMore;
};

// The connecting side, whole. kUnavailable: closed, not a link, or a wrong proof, in words that say
// which; kDeadline; kCancelled.
Result<std::unique_ptr<Channel>> prove_to(Fd fd, const std::string& peer,
                                          std::span<const std::byte> key, uint32_t protocol,
                                          const LinkWait& wait);

}  // namespace tensorfold
