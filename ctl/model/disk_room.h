// Whether a disk has room for what is about to be written to it.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/status.h"

namespace tensorfold::models {

inline constexpr int64_t kSpareDiskBytes = int64_t{1} << 30;  // left free beside what is written

// Free bytes for this user where `folder` is or will be (of the nearest folder above that exists).
Result<int64_t> free_bytes(const std::string& folder);

// An error that says what is needed and what is there.
Status check_room(const std::string& folder, int64_t needed_bytes);

// Makes the folder and those above it.
Status make_folders(const std::string& folder);

}  // namespace tensorfold::models
