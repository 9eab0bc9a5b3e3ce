// HMAC, session keys and GCM frames over libcrypto. Owner: see the header; no state of its own.
// Deliberately uses no primitive of ours.
#include "engine/cluster/link_crypto.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <limits>
#include <vector>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

void random_bytes(std::span<std::byte> out) {
  TF_CHECK_MSG(
      RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(out.size())) == 1,
      "the system gives no random bytes");
}

uint64_t random_u64() {
  uint64_t value = 0;
  random_bytes(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

LinkDigest link_hmac(std::span<const std::byte> key, std::string_view label,
                     std::span<const std::byte> data) {
  std::vector<std::byte> message;
  const auto head = std::as_bytes(std::span(label.data(), label.size()));
  message.insert(message.end(), head.begin(), head.end());
  message.push_back(std::byte{0});  // ends the label: no label is another's beginning
  message.insert(message.end(), data.begin(), data.end());
  LinkDigest digest{};
  unsigned int length = 0;
  TF_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), raw(message),
                message.size(), reinterpret_cast<unsigned char*>(digest.data()),
                &length) != nullptr);
  TF_CHECK_EQ(length, digest.size());
  return digest;
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

FrameSeal::FrameSeal(const LinkDigest& key, Side side)
    : context_(EVP_CIPHER_CTX_new()), side_(side) {
  TF_CHECK(context_ != nullptr);
  TF_CHECK(EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, raw(key), nullptr,
                             side == Side::kSealing ? 1 : 0) == 1);
}

// The nonce is the frame's number: never used twice with one key, and a frame out of its place
// does not open.
void FrameSeal::start() {
  TF_CHECK(frames_ < std::numeric_limits<uint64_t>::max());
  std::array<unsigned char, 12> nonce{};
  for (size_t i = 0; i < 8; ++i) nonce[4 + i] = static_cast<unsigned char>(frames_ >> (8 * i));
  ++frames_;
  TF_CHECK(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), -1) == 1);
}

void FrameSeal::seal(std::span<const std::byte> header, std::span<const std::byte> plain,
                     std::byte* out) {
  TF_CHECK(side_ == Side::kSealing);
  start();
  int length = 0;
  auto* to = reinterpret_cast<unsigned char*>(out);
  TF_CHECK(EVP_EncryptUpdate(context_.get(), nullptr, &length, raw(header),
                             static_cast<int>(header.size())) == 1);
  if (!plain.empty()) {
    TF_CHECK(EVP_EncryptUpdate(context_.get(), to, &length, raw(plain),
                               static_cast<int>(plain.size())) == 1);
  }
  TF_CHECK(EVP_EncryptFinal_ex(context_.get(), to + plain.size(), &length) == 1);
  TF_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, kFrameTagBytes,
                               to + plain.size()) == 1);
}

bool FrameSeal::open(std::span<const std::byte> header, std::span<const std::byte> sealed,
                     std::span<std::byte> plain) {
  TF_CHECK(side_ == Side::kOpening);
  TF_CHECK_EQ(sealed.size(), plain.size() + kFrameTagBytes);
  start();
  int length = 0;
  auto* to = reinterpret_cast<unsigned char*>(plain.data());
  if (EVP_DecryptUpdate(context_.get(), nullptr, &length, raw(header),
                        static_cast<int>(header.size())) != 1) {
    return false;
  }
  if (!plain.empty() && EVP_DecryptUpdate(context_.get(), to, &length, raw(sealed),
                                          static_cast<int>(plain.size())) != 1) {
    return false;
  }
  std::array<unsigned char, kFrameTagBytes> tag{};
  for (size_t i = 0; i < tag.size(); ++i)
    tag[i] = std::to_integer<unsigned char>(sealed[plain.size() + i]);
  if (EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_SET_TAG, kFrameTagBytes, tag.data()) != 1)
    return false;
  unsigned char none = 0;
  return EVP_DecryptFinal_ex(context_.get(), plain.empty() ? &none : to + plain.size(), &length) ==
         1;
}

}  // namespace tensorfold
