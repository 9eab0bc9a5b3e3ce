// See the header.
#include "daemon/service/gpu_kind.h"

#include <filesystem>
#include <fstream>
#include <iterator>

namespace tensorfold::service {

GpuKind gpu_kind(const std::string& root) {
  GpuKind out = GpuKind::kNone;
  std::error_code error;
  std::filesystem::directory_iterator gpu(root + "/proc/driver/nvidia/gpus", error);
  for (; !error && gpu != std::filesystem::directory_iterator(); gpu.increment(error)) {
    std::ifstream in(gpu->path() / "information");
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (text.find("GB10") != std::string::npos) return GpuKind::kGb10;
    out = GpuKind::kOwnMemory;
  }
  return out;
}

}  // namespace tensorfold::service
