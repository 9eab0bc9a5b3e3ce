#include "daemon/api/api_keys.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

namespace tensorfold::api {
namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) {
    text.remove_suffix(1);
  }
  return text;
}

bool is_label(std::string_view text) {
  return !text.empty() && text.size() <= kKeyLabelBytesMax &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '-' || c == '_';
         });
}

bool is_key(std::string_view text) {
  return text.size() >= kApiKeyBytesLeast && text.size() <= kApiKeyBytesMax &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

// "running=4 waiting=16 background"
Status read_bounds(std::string_view text, const std::string& where, KeyIdentity& out) {
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(" \t"), text.size());
    const std::string_view word = text.substr(0, end);
    text = trim(text.substr(end));
    if (word == "background") {
      out.background = true;
      continue;
    }
    const size_t equals = word.find('=');
    const std::string_view name = word.substr(0, std::min(equals, word.size()));
    const bool running = name == "running", waiting = name == "waiting";
    int number = -1;
    if (equals != std::string_view::npos) {
      const char* last = word.data() + word.size();
      const auto parsed = std::from_chars(word.data() + equals + 1, last, number);
      if (parsed.ec != std::errc() || parsed.ptr != last) number = -1;
    }
    const int most = running ? kKeyRunningMax : kKeyWaitingMax;
    if ((!running && !waiting) || number < (running ? 1 : 0) || number > most) {
      return invalid_argument(where + "after a key may stand running=1.." +
                              std::to_string(kKeyRunningMax) + ", waiting=0.." +
                              std::to_string(kKeyWaitingMax) + " and background");
    }
    (running ? out.running : out.waiting) = number;
  }
  if (out.waiting > 0 && out.running == 0) {
    return invalid_argument(where + "waiting= needs running=");
  }
  return ok_status();
}

}  // namespace

Result<ApiKeys> ApiKeys::load(const std::string& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return io_error("reading " + file, errno);
  struct stat info {};
  std::string text;
  Status status;
  if (fstat(fd, &info) != 0) {
    status = io_error("reading " + file, errno);
  } else if (!S_ISREG(info.st_mode)) {
    status = invalid_argument(file + " is not a regular file");
  } else if ((info.st_mode & 077) != 0) {
    status = invalid_argument(file + " can be read or written by others; chmod 0600 " + file);
  } else if (info.st_size > static_cast<off_t>(kKeysFileBytesMax)) {
    status =
        invalid_argument(file + " is longer than " + std::to_string(kKeysFileBytesMax) + " bytes");
  } else {
    text.resize(static_cast<size_t>(info.st_size));
    const ssize_t count = read(fd, text.data(), text.size());
    if (count < 0) status = io_error("reading " + file, errno);
    text.resize(count < 0 ? 0 : static_cast<size_t>(count));
  }
  close(fd);
  if (!status.ok()) return status;
  auto keys = parse(text, file);
  OPENSSL_cleanse(text.data(), text.size());
  return keys;
}

Result<ApiKeys> ApiKeys::parse(const std::string& text, const std::string& file) {
  ApiKeys keys;
  size_t at = 0;
  for (int line = 1; at < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view entry = trim(std::string_view(text).substr(at, end - at));
    at = end + 1;
    if (entry.empty() || entry.front() == '#') continue;
    const std::string where = file + ":" + std::to_string(line) + ": ";
    std::string label = "file-" + std::to_string(keys.keys_.size() + 1);
    if (const size_t colon = entry.find(':'); colon != std::string_view::npos) {
      label = std::string(trim(entry.substr(0, colon)));
      entry = trim(entry.substr(colon + 1));
    }
    if (!is_label(label)) {
      return invalid_argument(where + "a label is 1.." + std::to_string(kKeyLabelBytesMax) +
                              " letters, digits, '.', '-' or '_'");
    }
    KeyIdentity identity;
    identity.label = std::move(label);
    const size_t blank = std::min(entry.find_first_of(" \t"), entry.size());
    TF_RETURN_IF_ERROR(read_bounds(trim(entry.substr(blank)), where, identity));
    entry = entry.substr(0, blank);
    if (!is_key(entry)) {
      return invalid_argument(where + "a key is " + std::to_string(kApiKeyBytesLeast) + ".." +
                              std::to_string(kApiKeyBytesMax) + " printable characters");
    }
    if (keys.keys_.size() == kApiKeysMax) {
      return invalid_argument(where + "more than " + std::to_string(kApiKeysMax) + " keys");
    }
    keys.keys_.push_back({std::move(identity), digest_of(entry)});
  }
  if (keys.keys_.empty()) return invalid_argument(file + " holds no key");
  return keys;
}

ApiKeys::Digest ApiKeys::digest_of(std::string_view key) {
  Digest digest{};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

std::optional<KeyIdentity> ApiKeys::find(std::string_view key) const {
  const Digest digest = digest_of(key);
  const Key* found = nullptr;
  for (const Key& candidate : keys_) {  // all of them, whatever matches
    if (CRYPTO_memcmp(candidate.digest.data(), digest.data(), digest.size()) == 0) {
      found = &candidate;
    }
  }
  if (found == nullptr) return std::nullopt;
  return found->identity;
}

std::optional<KeyIdentity> ApiKeys::identify(const http::Request& request) const {
  if (const std::string* bearer = request.header("authorization")) {
    std::string_view value = *bearer;
    constexpr std::string_view kScheme = "bearer ";
    const bool scheme =
        value.size() > kScheme.size() && std::equal(kScheme.begin(), kScheme.end(), value.begin(),
                                                    [](char a, char b) { return a == (b | 0x20); });
    if (scheme) return find(trim(value.substr(kScheme.size())));
  }
  if (const std::string* key = request.header("x-api-key")) return find(*key);
  return std::nullopt;
}

}  // namespace tensorfold::api
