// Paths and names that a repository's listing may bring: what is taken from a server must not write
// outside the model folder, nor hide in messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace tensorfold::models {

inline constexpr size_t kRemotePathBytesMax = 1024;     // of one file's path in a repository
inline constexpr size_t kRemotePathPartsMax = 16;       // folders and name of such a path
inline constexpr size_t kRemoteNameBytesMax = 200;      // of one part: room for a suffix on disk
inline constexpr size_t kRepositoryNameBytesMax = 128;  // "owner/name"
inline constexpr size_t kRevisionBytesMax = 128;        // a branch, a tag or a commit

// Relative, of plain parts ("." and ".." are none), printable, within the bounds above.
Status check_remote_path(std::string_view path);
Status check_repository(std::string_view name);    // "owner/name", or "name"
Status check_revision(std::string_view revision);  // may hold slashes

bool is_hex(std::string_view text);  // lower or upper case digits, not empty

// Percent-encodes what a URL's path may not hold; slashes stay when `keep_slashes`.
std::string url_encode(std::string_view text, bool keep_slashes);

}  // namespace tensorfold::models
