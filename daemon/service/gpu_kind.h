// Whether the machine has an NVIDIA GPU, and whether that has a memory of its own. As the driver
// tells it in /proc: no driver library is opened.
#pragma once

#include <string>

namespace tensorfold::service {

enum class GpuKind : unsigned char { kNone, kOwnMemory, kGb10 };  // a GB10 shares the machine's

// `root` lets tests use a recorded tree. With several GPUs a GB10 counts.
GpuKind gpu_kind(const std::string& root = "");

}  // namespace tensorfold::service
