#include "ctl/model/path_rules.h"

#include <algorithm>
#include <cctype>

#include "engine/base/utf8.h"

namespace tensorfold::models {
namespace {

bool printable(char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; }

bool name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
}

constexpr size_t kShownBytesMax = 120;

}  // namespace

Status check_remote_path(std::string_view path) {
  const auto refuse = [&](std::string_view why) {
    return data_loss("the listing names the file \"" + shown_text(path, kShownBytesMax) +
                     "\": " + std::string(why));
  };
  if (path.empty() || path.size() > kRemotePathBytesMax) return refuse("its length is not usable");
  if (!std::all_of(path.begin(), path.end(), printable)) return refuse("it has control characters");
  if (path.find('\\') != path.npos) return refuse("it has a backslash");
  size_t parts = 0, at = 0;
  while (at <= path.size()) {
    const size_t slash = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, slash - at);
    if (part.empty() || part == "." || part == "..") return refuse("it leaves the folder");
    if (part.size() > kRemoteNameBytesMax) return refuse("a part of it is too long");
    if (++parts > kRemotePathPartsMax) return refuse("it is too deep");
    at = slash + 1;
  }
  return ok_status();
}

Status check_repository(std::string_view name) {
  const size_t slash = name.find('/');
  const std::string_view owner = slash == name.npos ? std::string_view() : name.substr(0, slash);
  const std::string_view last = slash == name.npos ? name : name.substr(slash + 1);
  const auto good = [](std::string_view part) {
    return !part.empty() && part != "." && part != ".." &&
           std::all_of(part.begin(), part.end(), name_char);
  };
  if (name.size() <= kRepositoryNameBytesMax && good(last) && (slash == name.npos || good(owner))) {
    return ok_status();
  }
  return invalid_argument("a repository is OWNER/NAME, not '" + shown_text(name, kShownBytesMax) +
                          "'");
}

Status check_revision(std::string_view revision) {
  const bool good = !revision.empty() && revision.size() <= kRevisionBytesMax &&
                    revision.find("..") == revision.npos && revision.front() != '/' &&
                    std::all_of(revision.begin(), revision.end(),
                                [](char c) { return name_char(c) || c == '/'; });
  if (good) return ok_status();
  return invalid_argument("a revision is a branch, a tag or a commit, not '" +
                          shown_text(revision, kShownBytesMax) + "'");
}

bool is_hex(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isxdigit(static_cast<unsigned char>(c)) != 0;
  });
}

std::string url_encode(std::string_view text, bool keep_slashes) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    if (name_char(c) || c == '~' || (c == '/' && keep_slashes)) {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += '%';
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace tensorfold::models
