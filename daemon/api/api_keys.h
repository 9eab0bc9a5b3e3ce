// API keys: one "label: key" or "key" a line, '#' comments, in a file that only its owner can read.
// After the key may stand what holds for it: running=N (replies in progress), waiting=N (replies
// that wait for that), background (its requests yield to others).
//
// Only SHA-256 digests are kept, and every attempt is compared with all of them in constant time,
// so neither memory nor timing tells a key.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/api/key_gate.h"
#include "daemon/http/message.h"
#include "engine/base/status.h"

namespace tensorfold::api {

inline constexpr size_t kApiKeysMax = 1024;  // keys of one file
inline constexpr size_t kKeyLabelBytesMax = 64;
inline constexpr size_t kApiKeyBytesMax = 512;  // of one key; at least kApiKeyBytesLeast
inline constexpr size_t kKeysFileBytesMax = 1024 * 1024;
inline constexpr size_t kApiKeyBytesLeast = 8;

class ApiKeys {
 public:
  // Refuses a file that group or others may read. Messages name file and line, never a key.
  static Result<ApiKeys> load(const std::string& file);
  static Result<ApiKeys> parse(const std::string& text, const std::string& file);

  // Whose key a request carries (Authorization: Bearer, or x-api-key).
  std::optional<KeyIdentity> identify(const http::Request& request) const;
  size_t size() const { return keys_.size(); }

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Key {
    KeyIdentity identity;
    Digest digest;
  };
  static Digest digest_of(std::string_view key);
  std::optional<KeyIdentity> find(std::string_view key) const;

  std::vector<Key> keys_;
};

}  // namespace tensorfold::api
