// The cryptography of the link: proofs of the shared key, session keys, sealed frames.
//
//   proof       = HMAC-SHA-256(key, label of the role | what both sent so far)
//   session key = HMAC-SHA-256(HMAC-SHA-256(key, "session" | transcript), label of the direction)
//   frame       = AES-256-GCM(session key of the direction, nonce = frame number, header as
//                 additional data): a frame that is changed, dropped, repeated or moved does not
//                 open
//
// Sources: FIPS 198-1 (HMAC), NIST SP 800-38D (GCM); both from OpenSSL's libcrypto.
// Owner: each seal belongs to the thread that uses its side of the channel. Deliberately without
// forward secrecy: who learns the key file can read what was recorded (docs/cluster.md).
#pragma once

#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace tensorfold {

inline constexpr size_t kLinkNonceBytes = 32;  // of each side, fresh for each connection
inline constexpr size_t kLinkProofBytes = 32;  // HMAC-SHA-256
inline constexpr size_t kFrameTagBytes = 16;   // behind each sealed frame

using LinkDigest = std::array<std::byte, kLinkProofBytes>;

void random_bytes(std::span<std::byte> out);  // from the system; aborts if it has none
uint64_t random_u64();

LinkDigest link_hmac(std::span<const std::byte> key, std::string_view label,
                     std::span<const std::byte> data);
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

// One direction of a channel, one side. Frames must be opened in the order they were sealed.
class FrameSeal {
 public:
  enum class Side : uint8_t { kSealing, kOpening };
  FrameSeal(const LinkDigest& key, Side side);

  // out [plain.size() + kFrameTagBytes]
  void seal(std::span<const std::byte> header, std::span<const std::byte> plain, std::byte* out);
  // sealed [plain.size() + kFrameTagBytes]. False: not what was sealed; `plain` is then garbage.
  bool open(std::span<const std::byte> header, std::span<const std::byte> sealed,
            std::span<std::byte> plain);

 private:
  void start();
  struct Free {
    void operator()(EVP_CIPHER_CTX* c) const { EVP_CIPHER_CTX_free(c); }
  };
  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
  const Side side_;
  uint64_t frames_ = 0;
};

}  // namespace tensorfold
