// The shared key of the link: a file that only the service can read.
// Owner: none; called once at start. Deliberately makes no key: `openssl rand -hex 32` does.
#pragma once

#include <cstddef>
#include <string>

#include "engine/base/status.h"

namespace tensorfold {

inline constexpr size_t kLinkKeyBytesLeast = 32;  // of the key without its trailing line end
inline constexpr size_t kLinkKeyBytesMax = 4096;

// The file's bytes without trailing white space. kInvalidArgument, naming the file, when it is not
// a regular file, when group or others have any right to it, or when it is too short or too long.
Result<std::string> read_link_key(const std::string& path);

}  // namespace tensorfold
