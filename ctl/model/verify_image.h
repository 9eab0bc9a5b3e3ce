// A prepared image (engine/weights/image.h) read whole and compared with the hashes it carries.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "engine/base/status.h"

namespace tensorfold::models {

// Superblock, directory and every section; the error names the weight or table that is damaged.
// `read_bytes` grows meanwhile.
Status verify_image(const std::string& path, std::atomic<int64_t>* read_bytes);

}  // namespace tensorfold::models
